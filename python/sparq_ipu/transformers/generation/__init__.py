# SPDX-License-Identifier: Apache-2.0
"""Decoding loops over an enabled model.

runs       a timed run, predictions along a given text
chats      tokens of a conversation
lookup     the loop of `generate` with drafts from the text itself
beginning  the beginning of a prompt, kept on disk
"""
