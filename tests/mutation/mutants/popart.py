# SPDX-License-Identifier: Apache-2.0
"""Mutants of the PopART operators."""

from __future__ import annotations

from . import of

_POPART = "poplar_ops/popart"
_OPS = "tests/popart/test_popart_ops.py::test"
_TIERS = "tests/popart/test_popart_tiers.py::test"

MUTANTS = [
    *of(
        f"{_POPART}/attribute_rules.cpp",
        f"{_OPS}_messages_of_decode",
        [
            ("known.count(name) == 0", "false", "attributes that are not known are passed over"),
            ("if (!got.empty())", "if (false)", "an attribute of another type is taken for 0"),
        ],
    ),
    *of(
        f"{_POPART}/attribute_rules.hpp",
        f"{_OPS}_messages_of_decode",
        [
            (
                "        checkAttributes(info, known);\n",
                "        (void)known;\n",
                "attributes are not looked at",
            ),
        ],
    ),
    *of(
        f"{_POPART}/begin.cpp",
        f"{_OPS}_begin_gives_what_it_takes",
        [
            (
                "program.add(poplar::program::Copy(held, given, false, dc));",
                "(void)program;",
                "nothing is given",
            ),
        ],
    ),
    *of(
        f"{_POPART}/cache_op.cpp",
        f"{_OPS}_operators_of_a_cache_keep_the_order_of_the_model "
        f"{_OPS}_options_of_the_session "
        f"{_OPS}_operators_of_a_cache_must_agree",
        [
            ("other->id > id", "other->id < id", "operators come before the ones that they follow"),
            ("if (session.enableStochasticRounding)", "if (false)", "random roundings are taken"),
            (
                'agree("n_kv_heads", mine.nKvHeads, theirs.nKvHeads);',
                "",
                "operators with other heads have one cache",
            ),
        ],
    ),
    *of(
        f"{_POPART}/cache_op.hpp",
        f"{_OPS}_clones_and_properties",
        [
            (
                "bool hasSideEffect() const final { return true; }",
                "bool hasSideEffect() const final { return false; }",
                "an operator that nobody reads may be dropped",
            ),
        ],
    ),
    *of(
        f"{_POPART}/cache_options.cpp",
        f"{_TIERS}_messages_are_those_of_python",
        [
            (
                "sparq::checkOfTiers(op, shape, memory);",
                "",
                "rows of 8 bits are taken where there are none",
            ),
            (
                'f(Option{"hot_rows", true, sparq::TierOptions::maxRows}',
                'f(Option{"hot_rows", true}',
                "any number of hot rows is taken",
            ),
        ],
    ),
    *of(
        f"{_POPART}/cache_options.hpp",
        f"{_OPS}_caches_that_differ_are_not_layers_of_one",
        [
            (
                "return shown() == other.shown();",
                "return !shown().empty() || &other == this;",
                "caches that differ are layers of one",
            ),
        ],
    ),
    *of(
        f"{_POPART}/decode.cpp",
        f"{_OPS}_decode_steps {_OPS}_messages_of_decode {_OPS}_two_settings_on_one_cache",
        [
            ("if (meanValue != 0 && meanValue != 1)", "if (false)", "mean_value may be 2"),
            ('sizes.at("n_kv_heads") != nKvHeads_', "false", "n_kv_heads may be another than that of key"),
            (
                "if (std::find(all.begin(), all.end(), mine) == all.end())",
                "if (all.empty())",
                "the second settings of a cache have no program",
            ),
        ],
    ),
    *of(
        f"{_POPART}/fill.cpp",
        f"{_OPS}_messages_of_fill",
        [
            ("nTokens < 1 || nTokens > capacity", "nTokens < 1", "more tokens than the capacity are taken"),
        ],
    ),
    *of(
        f"{_POPART}/layer_cache.cpp",
        f"{_OPS}_layers_share_one_program {_OPS}_one_cache_one_ipu {_OPS}_every_load_begins_empty",
        [
            ("sparq::storeLayer(cache_, program, dc);\n", "", "what a layer got is not kept"),
            ("if (mine != first)", "if (false)", "a cache may be on two IPUs"),
            ("sparq::initialiseCache(graph, cache_);", "", "a load begins with what was there"),
        ],
    ),
    *of(
        f"{_POPART}/layer_cache.hpp",
        f"{_OPS}_caches_of_two_names_are_two",
        [
            (
                "return layer_->get(device_, *this);",
                'return LayerCache::find(device_, "")->get(device_, *this);',
                "caches of two names are one",
            ),
        ],
    ),
    *of(
        f"{_POPART}/tensor_rules.cpp",
        f"{_OPS}_messages_of_decode {_OPS}_messages_of_shapes_are_those_of_python",
        [
            ("if (info.dataType() != rule.type)", "if (false)", "tensors of another type are taken"),
            ('shape.size() == 1 ? ",)" : ")"', '")"', "a tuple of one has no comma"),
        ],
    ),
]
