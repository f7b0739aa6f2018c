# SPDX-License-Identifier: Apache-2.0
"""Mutants of SparQ attention in models of transformers."""

from __future__ import annotations

from . import of

_CACHE_NAME = "tests/models/test_cache_name.py"
_DECODE = "tests/models/test_transformers_decode.py tests/models/test_index_bits_transformers.py"
_FEW_BITS = "tests/models/test_few_bits.py"
_LEAN = "tests/models/test_lean_step.py"
_STEP = "tests/models/test_few_bits_step.py"
_ROTARY = "tests/models/test_rotary.py"
_COMPONENTS = "tests/models/test_index_components_transformers.py"
_ERRORS = "tests/models/test_transformers_errors.py"

MUTANTS = [
    *of(
        "python/sparq_ipu/transformers/layer.py",
        f"{_DECODE} {_ERRORS}",
        [
            ("self._columns.replace(real)", "pass", "tokens that are hidden later are read again"),
            ("self._storage.replace(key, value, real)", "pass", "tokens that are hidden stay in the cache"),
            ("self._columns = self._columns.select(beam_idx)", "pass", "beams keep the columns of others"),
            ("self.cache.reorder(beam_idx.numpy())", "pass", "beams keep the keys of others"),
            (
                "if is_new:  # nothing is held, not even a batch size",
                "if False:",
                "a refused first prompt leaves a cache behind",
            ),
            (
                "is_all = n_tokens == self._columns.n_columns",
                "is_all = True",
                "a second prompt attends to itself only",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/layer.py",
        f"{_ERRORS}::test_assisted_generation",
        [
            ("    is_croppable = True\n", "", "assisted generation is refused in words of transformers"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/cache_name.py",
        _CACHE_NAME,
        [
            ("return {CACHE: cache}", "return {NAMES[-1]: cache}", "calls have the older name"),
            ("return getattr(output, CACHE)", "return getattr(output, NAMES[-1])", "so have outputs"),
            (
                "        if name in given:  #",
                "        if False:  #",
                "the name that a caller gives is not kept",
            ),
            (
                "name in inspect.signature(forward).parameters",
                "name in given",
                "the name of a parameter is not looked at",
            ),
            (
                "next((given[name] for name in NAMES if name in given), None)",
                "given.get(CACHE)",
                "a cache by its older name is not seen",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/steps.py",
        f"{_DECODE} {_ERRORS}",
        [
            (
                "lengths < settings.min_seq_len",
                "lengths <= settings.min_seq_len",
                "min_seq_len itself is dense",
            ),
            (
                "np.where(dense[:, None, None], attention(query, cache), output)",
                "output",
                "short rows of a batch are not dense",
            ),
            ("traffic.count(cache, lengths.tolist(), dense.tolist(), sparq)", "pass", "nothing is counted"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/handover.py",
        f"{_DECODE} {_ERRORS}",
        [
            (
                "if tensor is not returned or _version(tensor) != version:",
                "if tensor is not returned:",
                "keys that were changed in place are not noticed",
            ),
            (
                "        self.announce(None)\n        return settings",
                "        return settings",
                "one announcement serves for two calls",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/columns.py",
        _DECODE,
        [
            (
                "columns[b][:, real[b]] = rows[b, :, :length]",
                "columns[b][:, :length] = rows[b, :, :length]",
                "padding is not put back",
            ),
            ("grown[:, :start] = self.flags", "pass", "columns are forgotten when there are more"),
            ("stable=True)", "stable=True, descending=True)", "padding is moved to the front"),
            (
                "            self._flags[:, start:stop] = real\n",
                "            self._flags[:, start:stop] = True\n",
                "padding counts as tokens",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/columns.py",
        "tests/models/test_columns.py",
        [
            (
                "self._real_from = max(self._real_from, stop)",
                "pass",
                "appended padding is not looked at",
            ),
            ("elif start < self._real_from:", "elif False:", "cropped padding comes back"),
            (
                "self._real_from = max(self._real_from, self.n_columns)",
                "pass",
                "tokens that are hidden later are not looked at",
            ),
            ("selected._flags = self._flags[index]", "pass", "rows are not chosen"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/storage.py",
        f"{_DECODE} {_ERRORS}",
        [
            (
                "np.clip(lengths[index] - start, 0, stop - start)",
                "np.clip(lengths - start, 0, stop - start)",
                "moved rows have the lengths of others",
            ),
            (
                "2 * self.cache.capacity",
                "self.cache.capacity + 1",
                "a cache grows by one",
            ),
            ("if self._grows and n_positions", "if n_positions", "a fixed capacity grows"),
            ("real.sum(dim=1).numpy())", "None)", "what is behind the real tokens is appended"),
            (
                "    _check_layers(op, options, layers)\n",
                "",
                "options are looked at when the first prompt comes",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/traffic.py",
        _DECODE,
        [
            ("of_dense if dense else ", "", "dense rows count as sparse"),
            ("if now != before:", "if before is None:", "the first settings count for all steps"),
            (
                "return held.n_kv_heads * kernel",
                "return kernel",
                "one KV head is counted",
            ),
            ("self.n_steps += 1", "self.n_steps += len(lengths)", "rows count as steps"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/settings.py",
        f"{_DECODE} {_ERRORS}",
        [
            (
                "{**said, **changes}",
                "{**changes, **said}",
                "settings of a layer are overruled by those of all",
            ),
            ("settings[index] = None", "pass", "a dense layer is not dense"),
            (
                "for name, value in asked.items() if value is not None}",
                'for name, value in asked.items() if value is not None and name != "index_bits"}',
                "the key index of the settings is ignored",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/attention.py",
        f"{_ERRORS} {_DECODE}",
        [
            ("if dropout:", "if False:", "dropout is taken"),
            (
                "return None if q_length == 1 else base",
                "return base",
                "a mask is made for one token",
                "it shows all real tokens: attention looks whether it does, and needs none",
            ),
            ("if forward.has_cache:", "if False:", "keys that did not come from the cache are taken"),
            ("if key.shape[2] != query.shape[2]:", "if False:", "keys of another cache are taken"),
            (
                "layer.check_mask(attention_mask, query.shape[2])",
                "pass",
                "a mask of the model itself is not followed",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/lossless.py",
        "tests/models/test_several_tokens.py",
        [
            ("hooks.is_dense = True", "hooks.is_dense = False", "drafts are checked by SparQ attention"),
            ("cache.crop(-n)", "pass", "drafts stay in the cache"),
            (
                "if n_same < n:\n                cache.crop(n_same - n)",
                "if n_same + 1 < n:\n                cache.crop(n_same - n)",
                "one refused draft stays in the cache",
            ),
            (
                "n = min(draft_tokens, max_new_tokens - len(run.tokens) - 1)",
                "n = draft_tokens",
                "more tokens come than were asked for",
            ),
            ("new[: ends[0] + 1] if ends else new", "new", "a text goes on behind its end"),
            (
                "if drafts[i + 1] != right[i]), n)",
                "if drafts[i] != right[i]), n)",
                "a draft is compared with the next one",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/supported.py",
        "tests/models/test_families.py",
        [
            (
                "if None not in self.windows:",
                "if False:",
                "layers that all have windows are left to the model",
            ),
            (
                "return inner if isinstance(inner, PreTrainedModel) else base",
                "return base",
                "OPT is not decoded",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/integration.py",
        f"{_ERRORS} {_DECODE}",
        [
            ("layers[0].check_real(mask[:, :past])", "pass", "a hidden token can be shown again"),
            ("if past and layers[0].batch_size != batch:", "if False:", "another batch is taken"),
            ("if missed:", "if False:", "a layer that did not attend is not noticed"),
            ("if module.training:", "if False:", "a model in training is taken"),
            ("setattr(module, name, copy.deepcopy(value, copies))", "pass", "two models share a config"),
            ('_set_attention(model, state["attn_implementation"])', "pass", "disable leaves the attention"),
            ("handle.remove()", "pass", "disable leaves the hooks"),
            (
                "if bool(real.all()):\n                real = None",
                "if False:\n                real = None",
                "a mask without padding is kept",
                "it is handled as any mask, only slower",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/storage.py",
        "tests/models/test_transformers_window.py",
        [
            (
                "[history.steps[row] for row in index]",
                "[history.steps[0] for row in index]",
                "chosen rows have the history of others",
            ),
            (
                'target.one_layer("move").set_history(History(history.n_recent, steps))',
                "pass",
                "a cache that grows or is copied forgets the steps of window attention",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/stack.py",
        "tests/models/test_transformers_stack.py",
        [
            (
                'if name not in ("n_ipus", "split")',
                "if True",
                "a layer of another shape is on as many IPUs as the others",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/layer.py",
        "tests/models/test_several_tokens.py",
        [
            (
                "self._columns.n_columns + n_tokens <= self.window",
                "self._columns.n_columns + n_tokens < self.window",
                "tokens that just reach the window are prefill",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/tuning.py",
        "tests/models/test_tune.py",
        [
            (
                "        finally:\n            self._hooks.settings = self._dense",
                "        finally:\n            pass",
                "a probe leaves the settings that it measured",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/tune.py",
        "tests/models/test_tune.py",
        [
            (
                "            pieces[arguments.pieces :],",
                "            pieces[: arguments.pieces],",
                "settings are checked on the text they were chosen on",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/settings.py",
        "tests/models/test_recommended.py",
        [
            (
                'default.update(RECOMMENDED["layers"].get(layer, {}))',
                "pass",
                "layer 0 has the mean value by default",
            ),
            (
                "if published or not dense_below or",
                "if published or",
                "a program on an IPU is asked for dense attention of short texts",
            ),
            ("n_local=top_k // 4", "n_local=0", "no recent positions by default"),
            ("if positions <= most)", "if positions < most)", "the longest text of a kind has more rows"),
            (
                "min(settings.top_k, middle), *index",
                "settings.top_k, *index",
                "rows that are not there count",
                "what is compared has more positions than top_k",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/commands/command_line.py",
        "tests/packaging/test_ends_of_commands.py",
        [
            (
                "sys.stdout.flush()  # what fails",
                "pass  # what fails",
                "a full disk is a traceback at the end",
            ),
            (
                "INTERRUPTED, CLOSED = 130, 141",
                "INTERRUPTED, CLOSED = 1, 141",
                "an interrupt has no status of its own",
            ),
            ("if is_device and not file.isatty()", "if False", "a full device is noticed after the work"),
        ],
    ),
    *of(
        "python/sparq_ipu/torch/few_bits.py",
        _FEW_BITS,
        [
            (
                "(weight.abs().amax(dim=1) / 127)",
                "(weight.abs().amax(dim=1) / 64)",
                "half of the codes are idle",
            ),
            (
                "torch.stack((nibbles & 15, nibbles >> 4)",
                "torch.stack((nibbles & 15, nibbles & 15)",
                "prompts are multiplied by other weights",
            ),
            ("halves[:, :, :, 1] << 4", "halves[:, :, :, 1]", "codes are packed over one another"),
            (
                "memory is None or begin + codes.nbytes > end",
                "memory is None",
                "more codes share pages than there is room for",
            ),
            ("add_(8).clamp_(0, 15)", "add_(7).clamp_(0, 15)", "weights are a step too low"),
            ("(high - low) / 15", "(high - low) / 16", "the highest weight of a group is cut off"),
            (
                "if input.numel() <= MOST_ROWS * self.in_features:",
                "if input.numel() < MOST_ROWS * self.in_features:",
                "32 rows are multiplied as prompts are",
            ),
            ("output += self.bias", "pass", "steps leave out the bias"),
            ("if input.dtype is not torch.bfloat16:", "if False:", "another type is PyTorch's error"),
        ],
    ),
    *of(
        "python/sparq_ipu/torch/few_bits.py",
        _LEAN,
        [
            (
                'if self._is_int4 else ("codes", "scale"):',
                "if self._is_int4 else ():",
                "a joined layer does not hear of other scales",
            ),
            (
                '            self.unchanged.watch_value(holder, "bias")\n',
                "",
                "a joined layer does not hear of another bias",
            ),
            ("layer.out_features % _BLOCK for", "False for", "codes of part of a block are joined"),
            (
                "output += self._bias",
                "pass  # no bias",
                "joined layers leave out their bias",
            ),
            ("input.numel() <= MOST_ROWS * input.shape[-1]", "True", "many rows are multiplied by codes"),
        ],
    ),
    *of(
        "python/sparq_ipu/torch/unchanged.py",
        f"{_LEAN} {_STEP}",
        [
            (
                "            all(map(operator.is_, map(dict.get",
                "            True or all(map(operator.is_, map(dict.get",
                "nothing is heard",
            ),
            (
                "all(map(operator.is_, map(type, self._modules), self._classes))",
                "True",
                "another class is not heard",
            ),
            (
                'not any(map(dict.__contains__, self._own, itertools.repeat("forward")))',
                "True",
                "a module's own forward is not heard",
            ),
            ("not any(self._hooks)", "True", "hooks are not called"),
            (
                "and list(map(torch.Tensor.data_ptr, self._tensors)) == self._addresses",
                "",
                "a tensor that is elsewhere is not heard",
            ),
            (
                "and list(map(_version, self._counted)) == self._versions",
                "",
                "what is written into a tensor is not heard",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/few_bits_step.py",
        _STEP,
        [
            (
                "if any(one.modules is not module._modules",
                "if any(False and one",
                "other layers have former weights",
            ),
            ("if any(type(layer.mlp.act_fn) is not SILU", "if any(False", "any activation is SiLU"),
            ("if kinds != {", "if False and kinds != {", "norms have the epsilon of the last one"),
            ("or n_rows > MOST_ROWS", "", "more rows are taken than products of few rows have"),
            ("if rotary.is_bfloat16 else None", "", "other positions are read as bfloat16"),
            ("zip(layers[begin:], lengths)", "zip(layers, lengths)", "other layers hear of a token"),
            ("max(self._widths)", "self._widths[-1]", "there is memory for the last width alone"),
            (
                "            finally:\n",
                "            except ZeroDivisionError:\n",
                "a token is stored unheard",
            ),
            (
                'watched.watch_value(norm.__dict__, "variance_epsilon")',
                "pass",
                "another epsilon is not heard",
            ),
            ('        watched.watch_module(mlp._modules, "act_fn")\n', "", "another activation is not heard"),
            (
                "return lanes if torch.equal(ours, normed) else None",
                "return lanes",
                "norms are not compared",
                "norms of PyTorch that only add up alike are not at hand",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/decoder_step.cpp",
        _STEP,
        [
            (
                "    if (i & ((levelStep - 1) << (level * levelPower)))\n        break;",
                "",
                "sums are carried on at once",
            ),
            (
                "sums[0][k % lanes] += sums[0][k];",
                "sums[0][k - lanes] += sums[0][k];",
                "vectors are added in another order",
            ),
            ("addTo(output + row * weights.outputs, weights.bias, weights.outputs);", ";", "no bias"),
            ("activation[gate[i]]", "activation[up[i]]", "the wrong half is activated"),
            (
                "isLast ? lastNorm : layers[index + 1].inputNorm",
                "layers[isLast ? index : index + 1].inputNorm",
                "the last norm is another",
            ),
            (
                "widened(narrowed(widened(from[i]) * factor))",
                "(widened(from[i]) * factor)",
                "a norm is rounded once",
            ),
            (
                "for (std::size_t row = thread; row < nRows; row += team)",
                "for (std::size_t row = thread; row < 1; row += team)",
                "one row is normed",
            ),
            ("layer.gates.outputs == 2 * layer.down.inputs", "true", "any gates are taken"),
            ("of.cache->batch == nRows", "true", "a cache may have other rows"),
            ("nHeads * headDim == layer.output.inputs &&", "", "any number of query heads is taken"),
            ("    if (lengths.empty())\n      return;\n", "", "what attendRotary leaves is lost"),
            ("    if (!of.cache)\n      return;\n", "", "no layer attends elsewhere"),
            ("done.lengths.push_back(std::move(lengths));", ";", "layers do not hear what was done"),
            (
                "done.attentionSeconds += seconds(between - start)",
                "done.attentionSeconds += 0 * seconds(between - start)",
                "attention takes no time",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/lean_step.py",
        f"{_LEAN} {_STEP}",
        [
            (
                "return self._few_bits if self._few_bits is not None and self._few_bits.stands() else None",
                "return self._few_bits",
                "what changed before the first step is not heard",
            ),
            (
                "_layers=[], _few_bits=None, _is_known=False",
                "_layers=[]",
                "a copy has the addresses of the model",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/lean_step.py",
        _LEAN,
        [
            ("torch.cat((-low, high), -1)", "torch.cat((low, high), -1)", "half a head turns the other way"),
            ("is_usual and _has_its_bits(decoder.norm)", "is_usual", "another rounding of norms is taken"),
            (
                "if any(function.__module__ != source",
                "if any(False and source",
                "patched classes are not heard",
            ),
            ("type(part) is cls\n        and", "", "another class in a model is not heard"),
            ('        and "forward" not in own\n', "", "a part's own forward is not heard"),
            ("input_ids.shape[1] != 1 or", "", "a prompt is taken for a step"),
            ("torch.is_grad_enabled() or", "", "a step has no gradients where they are asked for"),
            ('or torch.is_autocast_enabled("cpu")', "", "autocast is not heard"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/component_order.py",
        _COMPONENTS,
        [
            (
                "0 < cache.index_components < cache.head_dim",
                "False",
                "no order is found",
            ),
            ("< cache.head_dim)", "<= cache.head_dim)", "an index of all components has an order too"),
            (
                "flags.nonzero()[-LAST_TOKENS:, 0]",
                "flags.nonzero()[:LAST_TOKENS, 0]",
                "the first tokens count",
            ),
            (
                "axis=1)[:, -LAST_TOKENS:].copy()",
                "axis=1).copy()",
                "more tokens count where there are pieces",
            ),
            (
                "if not self._is_wanted or self._order is not None:",
                "if not self._is_wanted:",
                "a later prompt changes the order",
            ),
            (
                "        storage.change_keys(lambda",
                "        (lambda *_: None)(lambda",
                "keys that are held stay as they were",
            ),
            ("order.argsort(-1) if is_inverse else order", "order", "keys are read in no order"),
            (
                "selected._order = self._order[index]",
                "selected._order = self._order",
                "rows that move have the order of others",
            ),
            (
                "[self._queries[row] for row in index.tolist()]",
                "list(self._queries)",
                "rows that move before there is an order have that of others",
            ),
            ("query[:, flags.numpy()[len(flags) - n :]]", "query", "hidden tokens have a part in the order"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/rotary.py",
        _ROTARY,
        [
            ("products.dtype is not self._dtype or", "", "products are read as another type of their size"),
            ("or not products.is_contiguous()", "", "strides of products are not heard"),
            ('settings.kind == "window"', "False", "window attention is another"),
            (
                "(settings.attention, settings.min_seq_len,",
                "(settings.attention, 0,",
                "short rows are not dense",
            ),
        ],
    ),
    *of(
        "poplar_ops/cpu/rotary_step.cpp",
        _ROTARY,
        [
            ("+ (bits >> 16 & 1u)", "", "ties of bfloat16 are rounded up"),
            ("beyondHalf = 65520.f", "beyondHalf = 65536.f", "what rounds to infinity is clamped"),
            ("beyondHalf = 65520.f", "beyondHalf = 65504.f", "the largest numbers are left to the caller"),
            ("if (!rows.round(other) ||", "if (", "a product is not rounded before the sum"),
            (
                "      if (!rows.toHalf(x, to))",
                "      if (!rows.toHalf(x, to) && false)",
                "no number is stored",
            ),
            (
                "h / groupSize : h - step.nHeads",
                "h / groupSize * 0 : h - step.nHeads",
                "all queries have the order of one head",
            ),
            (
                "step.order + (b * cache.nKvHeads + head) * n",
                "step.order + head * n",
                "all rows have one order",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/weights.py",
        _FEW_BITS,
        [
            (
                'if weights == "int8" or module is output:',
                'if weights == "int8":',
                "the output layer has 4 bits",
            ),
            ("if module.weight.dtype is not torch.bfloat16:", "if False:", "slow types are taken"),
            (
                "if not hasattr(torch, Int8Linear.needs):",
                "if False:",
                "a PyTorch without the kernel is asked",
            ),
            ("if before:", "if False:", "weights of few bits are rounded to others"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/gguf_groups.py",
        _FEW_BITS,
        [
            ("if torch.equal(stored[order], weight):", "if True:", "weights of another model are taken"),
            ("_half(blocks, 2) + 8 * scale", "_half(blocks, 2)", "Q4_1: weights are eight steps too low"),
            ("8 * scale - low", "8 * scale", "Q4_K: minima are left out"),
            ("if n_rows % (2 * n_heads) == 0:", "if False:", "reordered rows are rounded anew"),
        ],
    ),
]
