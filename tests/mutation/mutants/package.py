# SPDX-License-Identifier: Apache-2.0
"""Mutants of the Python package: devices, commands, plans of whole models, pages."""

from __future__ import annotations

from . import of

MUTANTS = [
    *of(
        "python/sparq_ipu/devices.py",
        "tests/ops/test_errors.py tests/packaging/test_cli.py",
        [
            ("return available_devices()[0]", "return available_devices()[-1]", "auto is the slowest device"),
            ("if name not in known:", "if not known:", "options of another device are taken"),
        ],
    ),
    *of(
        "python/sparq_ipu/backends/__init__.py",
        "tests/ops/test_append.py",
        [
            (
                "-> bool:\n        return False",
                "-> bool:\n        return True",
                "a token is taken for appended, and is not",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/emulator.py",
        "tests/packaging/test_toolkit_command.py",
        [
            (
                "[str(toolkit / folder), *([now] if now else [])]",
                "[*([now] if now else []), str(toolkit / folder)]",
                "what is set comes before the toolkit",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/commands/cli.py",
        "tests/packaging/test_cli.py",
        [
            ("[*rest, *words[1:]]", "rest", "a command gets nothing of its options"),
            ("{reason or 'available'}", "{'available'}", "every device is said to be there"),
        ],
    ),
    *of(
        "python/sparq_ipu/commands/extras.py",
        "tests/models/test_imports.py::test_other_errors_of_an_import_pass "
        "tests/models/test_imports.py::test_a_command_says_it_in_one_line",
        [
            (
                "if name not in EXTRAS:\n                raise",
                "if False:\n                raise",
                "any module is one of an extra",
            ),
            ("        sys.exit(2)", "        sys.exit(0)", "a command without its package succeeds"),
        ],
    ),
    *of(
        "python/sparq_ipu/commands/tables.py",
        "tests/planning/test_report.py::test_replace_block "
        "tests/planning/test_report.py::test_the_table_of_comparison_has_a_row_for_each_key_index",
        [
            ('text.rstrip("\\n") + "\\n"', 'text.rstrip("\\n")', "a block runs into its end"),
            ('"" if index_bits in (None, 16)', '"" if index_bits in (None, 8)', "8 bits are not said"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/links.py",
        "tests/pod/test_pod_plans.py::test_links_are_those_of_the_emulator",
        [
            ("return 1 + n_ipus // 4", "return 1 + n_ipus // 2", "a sync of all takes twice the way"),
            ('"across": 2', '"across": 4', "four links lead across"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/measured_range.py",
        "tests/planning/test_planning.py::test_plans_beyond_the_measured_footprints_say_so",
        [
            ("SCRATCH = 1.05", "SCRATCH = 10.5", "ten times what was measured is not extrapolated"),
            ("(BASELINE.name, 2)", "(BASELINE.name, 4)", "dense caches count twice"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/model_shape.py",
        "tests/planning/test_whole_model.py::test_models_have_as_many_weights_as_published "
        "tests/planning/test_whole_model.py::test_a_config_file_gives_the_shape "
        "tests/planning/test_whole_model.py::test_a_config_that_says_too_little",
        [
            ("(3 if self.gated else 2)", "2", "no model is gated"),
            (
                'size("num_key_value_heads", heads)',
                'size("num_key_value_heads", 1)',
                "one KV head where none is said",
            ),
            ("n_heads % self.n_kv_heads != 0", "n_heads % self.n_kv_heads < 0", "heads need not divide"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/plan_command.py",
        "tests/planning/test_whole_model.py::test_what_does_not_fit_is_a_status_and_the_fullest_ipu_a_row "
        "tests/planning/test_whole_model.py::test_a_list_of_models_is_of_nothing_else",
        [
            ("return 0 if plans[-1].fits else 1", "return 0", "what does not fit is a success"),
            (
                "max(need.tile for need in needs) / KIB",
                "min(need.tile for need in needs) / KIB",
                "the emptiest IPU is shown",
            ),
            (
                'only(parser, a, "--models")',
                "vars(a)",
                "a list of models takes any option",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/published_program.py",
        "tests/device_model/test_device_model.py::test_packets_against_an_element_by_element_count "
        "tests/device_model/test_device_model.py::test_sorting_network_against_one_that_sorts "
        "tests/device_model/test_device_model.py::test_sorting_network_splits_comparisons_evenly "
        "tests/device_model/test_device_model.py::test_described_bytes_are_those_of_the_algorithm",
        [
            ("share += -share % 8", "share += 0", "a tile may have half a word"),
            (
                "RemoteCopy(N_HEADS * batch * top_k, row, 2)",
                "RemoteCopy(N_HEADS * batch * top_k, row)",
                "values are not read",
            ),
            ("if top_k >= seq_len:", "if top_k > seq_len:", "all positions are sorted to take all"),
            ("if i >= rounds_to_sort:", "if i > rounds_to_sort:", "the first merge drops nothing"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/report.py",
        "tests/planning/test_report.py::test_without_matplotlib "
        "tests/planning/test_report.py::test_what_a_page_shows_is_text",
        [
            ("<td>{html.escape(cell)}</td>", "<td>{cell}</td>", "a cell is taken for HTML"),
            (
                "        return 2\n    except OSError",
                "        return 0\n    except OSError",
                "without matplotlib: success",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/report_data.py",
        "tests/planning/test_report.py::test_rows_come_from_the_file_or_from_a_plan "
        "tests/planning/test_report.py::test_the_table_of_steps_has_every_key_index "
        "tests/planning/test_report.py::test_calibration_rows_cover_every_measurement",
        [
            (
                "return dense / sparq if dense and sparq else None",
                "return sparq / dense if dense and sparq else None",
                "a speed-up upside down",
            ),
            ("at = merged.index(name) + 1", "at = merged.index(name)", "steps are out of order"),
            ("100 * errors[-1]", "100 * errors[0]", "the largest error is the least"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/report_pictures.py",
        "tests/planning/test_report.py::test_every_step_of_the_program_is_in_one_group",
        [
            ('name.split("/")[-1]', "name", "steps of a round are nobody's"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/whole_model.py",
        "tests/planning/test_whole_model.py::test_every_layer_and_every_weight_is_somewhere",
        [
            (
                "return 2 * request.shape.n_layers * (there + back)",
                "return request.shape.n_layers * (there + back)",
                "a layer is added up once",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/whole_model.py",
        "tests/planning/test_whole_model.py::test_caches_of_all_batches_in_flight_are_there_at_once "
        "tests/planning/test_whole_model.py::test_an_embedding_that_is_tied_is_there_once",
        [
            (
                "plain = layers.plan(kernels[-1], n_layers * flight)",
                "plain = layers.plan(kernels[-1], n_layers)",
                "caches of one batch alone are there",
            ),
            (
                "max(self.seconds_per_step / self.request.in_flight, busiest)",
                "(self.seconds_per_step / self.request.in_flight)",
                "one IPU does the work of two",
            ),
            ("sum(seconds) if self.in_turn else max(seconds)", "max(seconds)", "IPUs in turn work at once"),
            ("if not is_first or shares_output:", "if not is_first:", "a tied embedding is there twice"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/whole_model.py",
        "tests/planning/test_whole_model.py::test_where_three_tiers_pay_layers_are_in_them "
        "tests/planning/test_whole_model.py::test_what_is_said_to_fit_does",
        [
            (
                "planned(kernels[-1], n), room",
                "planned(kernels[-1], n), 2 * room",
                "three tiers have twice the room",
            ),
            (
                "elif need.tile > model.tile_bytes:",
                "elif need.tile > 2 * model.tile_bytes:",
                "twice the SRAM of a tile",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/poptorch/library.py",
        "tests/models/test_poptorch_contract.py::test_where_the_library_is_sought "
        "tests/models/test_poptorch_contract.py::test_the_library_that_is_not_there_lists_where_it_was_sought",
        [
            (
                "return [*paths, package / LIBRARY,",
                "return [package / LIBRARY,",
                "the environment names no library",
            ),
            (
                "        if not candidate.is_file():\n            continue\n",
                "",
                "a path that is not there is loaded",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/autograd.py",
        "tests/models/test_transformers_errors.py::test_gradients",
        [
            (
                "any(origin.requires_grad for origin in origins)",
                "all(origin.requires_grad for origin in origins)",
                "one gradient may be lost",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/cache.py",
        "tests/models/test_transformers_decode.py::test_traffic_is_counted "
        "tests/models/test_transformers_decode.py::test_traffic_is_that_of_the_cache "
        "tests/models/test_families.py",
        [
            (
                "and index in kinds.own:",
                "and index not in kinds.own:",
                "layers with windows change their kinds",
            ),
            (
                "sum(layer.bytes_read for layer in traffic)",
                "sum(layer.bytes_read for layer in traffic[1:])",
                "the first layer moves nothing",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/checkpoints.py",
        "tests/models/test_generate.py::test_paths_come_first "
        "tests/models/test_generate.py::test_checkpoint_without_a_tokenizer "
        "tests/models/test_imports.py::test_a_gguf_file_needs_gguf "
        "tests/models/test_imports.py::test_a_folder_without_a_config_is_no_model",
        [
            (
                'path.is_dir() and not (path / "config.json").is_file()',
                "False",
                "a folder without a config is taken",
            ),
            ('any(self.path.glob("tokenizer*"))', "True", "every folder has a tokenizer"),
            ('importlib.util.find_spec("gguf") is None', "False", "nothing says that gguf is missing"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/command_settings.py",
        "tests/models/test_generate.py::test_no_mean_value_says_so "
        "tests/models/test_generate.py::test_what_the_model_can_not_have "
        "tests/models/test_generate.py::test_the_settings_that_were_used "
        "tests/models/test_generate.py::test_bad_usage "
        "tests/models/test_generate.py::test_longer_texts_have_more_rows",
        [
            ("if self.published or self.n_layers", "if self.n_layers", "a longer text overrules the paper"),
            ("if self.n_layers not in (None, n_layers):", "if False:", "settings of another model are taken"),
            ('said["mean_value"] = False', 'said["mean_value"] = True', "--no-mean-value gives it"),
            ("if v != every[n]})", "})", "a layer says what all have"),
            ('flags + ["--published"] * arguments.published', "flags", "--published is no setting"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/generation.py",
        "tests/models/test_generate.py::test_forced_predictions_are_those_of_generation "
        "tests/models/test_generate.py::test_first_difference "
        "tests/models/test_generate.py::test_the_first_token_is_of_prefill_and_in_no_speed",
        [
            (
                "token = continuation[:, index : index + 1]",
                "token = logits[:, -1:].argmax(-1)",
                "a given text is not followed",
            ),
            (
                "else min(len(one), len(other))",
                "else max(len(one), len(other))",
                "the end of the longer counts",
            ),
            (
                "(len(self.tokens) - 1) / self.decode_seconds",
                "len(self.tokens) / self.decode_seconds",
                "the first token counts as decoded",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/settings_file.py",
        "tests/models/test_tune.py::test_other_files_are_refused "
        "tests/models/test_tune.py::test_a_file_says_what_enable_does",
        [
            (
                'content.get("format") != FORMAT',
                'content.get("format") is None',
                "a file of another format is taken",
            ),
            ("elif layer != default:", "elif layer == default:", "what differs is not written"),
        ],
    ),
    *of(
        "reference/sparq_reference/errors.py",
        "tests/reference/test_reference_settings.py::test_does_not_fit_says_what_and_by_how_much",
        [
            (
                "(str(self), self.resource, self.need, self.room)",
                "(str(self), self.resource, self.room, self.need)",
                "a copied error has need for room",
            ),
        ],
    ),
    *of(
        "reference/sparq_reference/layout.py",
        "tests/reference/test_reference_contract.py::test_attention_is_the_contract "
        "tests/reference/test_reference_laws.py",
        [
            (
                "slice(kv * group_size, (kv + 1) * group_size)",
                "slice(kv, None, key.shape[1])",
                "heads of a group are apart",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/__init__.py",
        "tests/packaging/test_imports.py::test_the_package_alone_loads_no_planning_and_no_backend "
        "tests/packaging/test_imports.py::test_names_that_are_looked_up",
        [
            ("return planning if name ==", "return planning.plan if name ==", "planning is its function"),
            ('if name not in ("plan", "planning"):', "if False:", "any name is the plan"),
            ('return [*globals(), "plan"]', "return [*globals()]", "dir does not list what is looked up"),
        ],
    ),
    *of(
        "python/sparq_ipu/report.py",
        "tests/packaging/test_ends_of_commands.py::test_every_command_is_guarded",
        [("sys.exit(guarded(main))", "sys.exit(main())", "Ctrl-C ends the command with a traceback")],
    ),
    *of(
        "python/sparq_ipu/generate.py",
        "tests/models/test_generate.py::test_text_and_figures "
        "tests/models/test_generate.py::test_speed_has_a_spread "
        "tests/models/test_generate.py::test_options "
        "tests/models/test_generate.py::test_bad_usage "
        "tests/models/test_generate.py::test_the_command_ends_a_chat_there",
        [
            (
                "if value is not None and arguments.temperature is None:",
                "if False:",
                "--top-p alone is taken",
            ),
            ("(10, 50, 90)", "(0, 50, 100)", "all steps are the middle 80 %"),
            ("torch.manual_seed(arguments.seed or 0)", "torch.manual_seed(0)", "one seed for all"),
            (
                "tokens = tokens[:, : arguments.prompt_tokens]",
                "tokens = tokens[:, -arguments.prompt_tokens :]",
                "the last tokens of a prompt are kept",
            ),
            (
                'ratio = traffic["bytes_dense"] / traffic["bytes_read"]',
                'ratio = traffic["bytes_read"] / traffic["bytes_dense"]',
                "the ratio of bytes is its inverse",
            ),
            ('"eos_token_id": stops or None', '"eos_token_id": None', "an answer goes on behind its end"),
        ],
    ),
    *of(
        "python/sparq_ipu/generate.py",
        "tests/models/test_generate.py::test_a_prompt_is_read_once_for_each_attention",
        [
            (" and not is_stacked(dict(device=device))", "", "caches on IPUs are copied"),
            ("dense.tokens, run.read)", "dense.tokens, None)", "a prompt is read three times"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/generation.py",
        "tests/models/test_generate.py::test_what_was_read_is_kept_as_it_was",
        [
            ("read = copy.deepcopy(cache)", "read = cache", "what was read goes on with the run"),
            ("time.perf_counter() - copying)", "time.perf_counter())", "copying counts as a step"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/on_chip.py",
        "tests/planning/test_planning.py::test_the_range_of_a_time_has_a_factor_for_each_kind_of_work",
        [
            (
                'return seconds_by_category["total"] - seconds_by_category["streaming"]',
                'return seconds_by_category["total"]',
                "streaming is work on chip",
            ),
            (
                "for category, (_, high) in FACTORS",
                "for category, (high, _) in FACTORS",
                "the longest time is the shortest",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/torch/graphs.py",
        "tests/models/test_torch_attention.py::test_what_uses_numpy_is_disabled_while_the_compiler_traces",
        [
            (
                "disabled if torch.compiler.is_compiling() else function",
                "function",
                "the compiler traces NumPy",
            )
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/__init__.py",
        "tests/models/test_imports.py::test_every_public_name_is_there",
        [
            ('    "LosslessRun": "lossless",\n', "", "a public name is sought in another module"),
            ("return __all__", "return [*globals()]", "dir lists what is no public name"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/pieces.py",
        "tests/models/test_pieces.py",
        [
            (
                "        if block:\n            earlier",
                "        if begin:\n            earlier",
                "a piece does not see what is before it",
            ),
            (
                "lerp(result.float(), earlier[:, :, :, cell].float()",
                "lerp(earlier[:, :, :, cell].float(), result.float()",
                "parts of attention are weighted the other way round",
            ),
            ("triu(1 + n_keys", "triu(2 + n_keys", "a token sees the next one"),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/pieces.py",
        "tests/models/test_serve_trials.py",
        [("-value[:, :, order]", "value[:, :, order]", "a trial of attention has sums that are far from 0")],
    ),
    *of(
        "python/sparq_ipu/transformers/places.py",
        "tests/models/test_serve_engine.py::test_logits_are_the_same_bits_in_any_company "
        "tests/models/test_serve_engine.py::test_a_request_has_the_tokens_of_generate "
        "tests/models/test_serve_engine.py::test_a_prefix_is_not_read_again "
        "tests/models/test_serve_engine.py::test_a_long_prompt_does_not_hold_up_others "
        "tests/models/test_serve_engine.py::test_lossless_says_what_dense_attention_says",
        [
            ("if past is None:", "if True:", "a piece attends to itself alone"),
            ("self._between()", "pass", "a prompt holds up others"),
        ],
    ),
]
