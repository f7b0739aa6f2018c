# SPDX-License-Identifier: Apache-2.0
"""Decoding loops over an enabled model.

runs       a timed run with its cache traffic, predictions along a given text
chats      tokens of a conversation
lossless   the tokens of dense greedy decoding, drafted by SparQ attention
"""
