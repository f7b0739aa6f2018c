// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which vector layouts a target can store: the compressed ones are stored as plain pointers here.
#define VECTOR_AVAIL_SPAN 1
#define VECTOR_AVAIL_SHORT_SPAN 1
#define VECTOR_AVAIL_ONE_PTR 1
#define VECTOR_AVAIL_SCALED_PTR32 0
#define VECTOR_AVAIL_SCALED_PTR64 0
#define VECTOR_AVAIL_SCALED_PTR128 0
#define VECTORLIST_AVAIL_DELTAN 1
#define VECTORLIST_AVAIL_DELTANELEMENTS 1
