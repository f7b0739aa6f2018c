# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for a model with SparQ attention: `sparq-ipu serve`, see docs/serve.md.

contexts   the model and the contexts of all requests, each in its place; forward passes
products   the model's products a fixed number of rows at a time: the same bits in any company
prefixes   which place a request gets, and what of its prompt is there already
sampling   the next token from logits
text       text from tokens as they come, stop strings
engine     the thread that serves requests together
schemas    what a request over HTTP may say, by the API of OpenAI
answers    what is said in return
api        the application (FastAPI)
metrics    what it counts (Prometheus)
command    the command line
"""
