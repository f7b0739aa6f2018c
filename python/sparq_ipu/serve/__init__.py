# SPDX-License-Identifier: Apache-2.0
"""An HTTP server for a model with SparQ attention: `sparq-ipu serve`, see docs/serve.md.

command         the command line
api             the application (FastAPI)
guard           limits on requests and keys, before a request is read
schemas         the requests of the API of OpenAI
prompts         tokens of a request and its sampling
answers         the responses, whole or as a stream
engine          the thread that serves all requests together
sampling        the next token from logits
text            text from tokens as they come, stop strings
prefixes        which place a request gets, and which tokens of its prompt that place already holds
contexts        the model and the texts of all requests; forward passes
places          the KV cache of these texts, one place for each
products        products of a fixed number of rows: the same bits whichever texts share them
metrics         counters and times (Prometheus)
process         the HTTP server in its process, and its end
"""
