# SPDX-License-Identifier: Apache-2.0
"""popc: which vertices it finds, how it names them, and its errors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

POPC = Path(__file__).resolve().parents[1] / "popc" / "popc.py"


def popc(*args, **env):
    return subprocess.run(
        [sys.executable, str(POPC), *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def found(tmp_path, source: str, *flags) -> dict:
    file = tmp_path / "codelets.cpp"
    file.write_text(source)
    r = popc(file, "--list-vertices", *flags)
    assert r.returncode == 0, r.stderr
    return {name: fields.split(", ") for name, fields in (x.split(": ") for x in r.stdout.splitlines())}


def test_names_and_fields(tmp_path):
    names = found(
        tmp_path,
        """
        #include <poplar/Vertex.hpp>
        #include <type_traits>
        using namespace poplar;
        template <bool supervisor>
        class Both : public std::conditional_t<supervisor, SupervisorVertex, Vertex> {
        public:
          Input<Vector<float>> first;
          const unsigned second;
          static const bool notAField = true;
          static constexpr int neither = 1;
          bool compute() { return true; }
        private:
          Output<float> third;
        };
        template class Both<true>;
        struct Base : public Vertex { Input<int> inherited; };  // no compute(): a base
        class Derived final : public Base { public: Output<int> own; void compute() {} };
        template <class T> struct TBase : public Vertex { Input<T> in; };
        template <class T, class U> struct Twice : public TBase<T> {
          Output<U> out;
          bool compute() { return true; }
        };
        template struct Twice<unsigned, unsigned short>;
        template <class T> class Never : public Vertex { Input<T> in; bool compute(); };  // not instantiated
        class Forward;
        struct NotAVertex { int x; bool compute() { return true; } };
        struct Plain : Vertex { Input<float> x; bool compute() { return true; } };
        """,
    )
    assert names == {
        "Both<true>": ["first", "second", "third"],
        "Derived": ["inherited", "own"],
        "Twice<unsigned int,unsigned short>": ["in", "out"],
        "Plain": ["x"],
    }


def test_enumerators_bools_and_numbers_in_names(tmp_path):
    names = found(
        tmp_path,
        """
        #include <poplar/Vertex.hpp>
        #include <poplar/HalfFloat.hpp>
        namespace a { enum class Kind { One, Two }; enum Plain { Three = 3 };
        template <typename T, Kind k, bool flag, int n, Plain p> class Many : public poplar::Vertex {
          poplar::Input<T> in; public: bool compute() { return true; } };
        template class Many<half, Kind::Two, true, -4, Three>;
        template class Many<unsigned int, Kind::One, false, 7, Three>; }
        """,
    )
    assert names == {
        "a::Many<half,a::Kind::Two,true,-4,a::Three>": ["in"],
        "a::Many<unsigned int,a::Kind::One,false,7,a::Three>": ["in"],
    }


def test_instantiations_of_partial_specialisations_have_all_arguments(tmp_path):
    names = found(
        tmp_path,
        """
        #include <poplar/Vertex.hpp>
        enum class Kind { One, Two };
        template <class T, bool flag, Kind k> class Part : public poplar::Vertex {
          poplar::Input<T> in; public: bool compute() { return true; } };
        template <class U> class Part<U, true, Kind::Two> : public poplar::Vertex {
          poplar::Output<U> special; public: bool compute() { return true; } };
        template class Part<int, true, Kind::Two>;
        template class Part<float, true, Kind::One>;
        """,
    )
    assert names == {"Part<int,true,Kind::Two>": ["special"], "Part<float,true,Kind::One>": ["in"]}


def test_macros_and_includes(tmp_path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "shared.hpp").write_text("#include <poplar/Vertex.hpp>\nusing poplar::Output;\n")
    source = """
        #include "shared.hpp"
        #ifndef __POPC__
        #error "codelets are compiled with __POPC__"
        #endif
        #ifdef __IPU__
        #error "not for the IPU"
        #endif
        struct NAME : poplar::Vertex { Output<float> out; bool compute() { return true; } };
    """
    assert found(tmp_path, source, "-I", tmp_path / "inc", "-DNAME=Called") == {"Called": ["out"]}


def test_object_and_depfile(tmp_path):
    (tmp_path / "h.hpp").write_text("#include <poplar/Vertex.hpp>\n")
    (tmp_path / "a.cpp").write_text(
        '#include "h.hpp"\nstruct A : poplar::Vertex { poplar::Output<int> o; void compute() { *o = 1; } };\n'
    )
    (tmp_path / "b.cpp").write_text(
        '#include "h.hpp"\nstruct B : poplar::Vertex { poplar::Output<int> o; void compute() { *o = 2; } };\n'
    )
    out = tmp_path / "both.gp"
    r = popc(
        "-O1",
        "--target",
        "cpu,ipu2",
        tmp_path / "a.cpp",
        tmp_path / "b.cpp",
        "-MF",
        tmp_path / "d",
        "-o",
        out,
    )
    assert r.returncode == 0, r.stderr
    assert out.stat().st_size > 0
    depfile = (tmp_path / "d").read_text()
    for name in ("a.cpp", "b.cpp", "h.hpp", "Vertex.hpp"):
        assert name in depfile
    assert depfile.startswith(f"{out}:") and "registration0.cpp" not in depfile


@pytest.mark.skipif(sys.platform == "darwin", reason="a signed library can not carry objects")
def test_objects_are_linked_with_one_another(tmp_path):
    (tmp_path / "a.cpp").write_text(
        """
        #include <poplar/Vertex.hpp>
        int elsewhere();
        template <class T, bool flag> struct A : poplar::Vertex {
          poplar::Output<T> o; void compute() { *o = 0; } };
        template <class T> struct A<T, true> : poplar::Vertex {
          poplar::Output<T> o; void compute() { *o = elsewhere(); } };
        template struct A<int, true>;
        """
    )
    (tmp_path / "b.cpp").write_text("int elsewhere() { return 2; }\n")
    for name in "ab":
        r = popc("-O0", tmp_path / f"{name}.cpp", "-o", tmp_path / f"{name}.gp")
        assert r.returncode == 0, r.stderr
    with pytest.raises(OSError, match="elsewhere"):
        ctypes.CDLL(str(tmp_path / "a.gp"), mode=os.RTLD_NOW)
    r = popc(tmp_path / "a.gp", tmp_path / "b.gp", "-MF", tmp_path / "d", "-o", tmp_path / "both.gp")
    assert r.returncode == 0, r.stderr
    both, units = ctypes.CDLL(str(tmp_path / "both.gp"), mode=os.RTLD_NOW), ctypes.c_uint()
    both.poplar_codelet_tables(ctypes.byref(units))
    assert units.value == 2
    assert "a.gp" in (tmp_path / "d").read_text() and "b.gp" in (tmp_path / "d").read_text()


@pytest.mark.skipif(sys.platform == "darwin", reason="a signed library can not carry objects")
def test_one_source_with_two_definitions_is_two_objects(tmp_path):
    (tmp_path / "a.cpp").write_text(
        "#include <poplar/Vertex.hpp>\n"
        "struct NAME : poplar::Vertex { poplar::Output<int> o; void compute() { *o = 1; } };\n"
    )
    for name in "AB":
        r = popc("-O0", f"-DNAME={name}", tmp_path / "a.cpp", "-o", tmp_path / f"{name}.gp")
        assert r.returncode == 0, r.stderr
    r = popc(tmp_path / "A.gp", tmp_path / "B.gp", "-o", tmp_path / "both.gp")
    assert r.returncode == 0, r.stderr
    both, units = ctypes.CDLL(str(tmp_path / "both.gp"), mode=os.RTLD_NOW), ctypes.c_uint()
    both.poplar_codelet_tables(ctypes.byref(units))
    assert units.value == 2


def test_comments_are_no_code(tmp_path):
    """What is estimated from tokens of the source."""
    sizes = []
    for comment in ("", "// a comment\n", "/* a long\n comment */"):
        (tmp_path / "a.cpp").write_text(
            "#include <poplar/Vertex.hpp>\nstruct A : poplar::Vertex {\n  poplar::Output<int> o;\n"
            f"  {comment} void compute() {{ *o = 1; }}\n}};\n"
        )
        code = "import sys; sys.path.insert(0, sys.argv[1]); import vertices\nfor v in "
        code += "vertices.find_vertices(sys.argv[2], sys.argv[4:], ['-I' + sys.argv[3]]): print(v.tokens)"
        include = POPC.parents[1] / "include"
        source, compiler = tmp_path / "a.cpp", os.environ.get("CXX", "c++").split()
        command = [sys.executable, "-c", code, POPC.parent, source, include, *compiler]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        sizes.append(int(done.stdout))
    assert sizes[0] == sizes[1] == sizes[2] > 20


@pytest.mark.parametrize(
    ("args", "env", "status", "message"),
    [
        (["{tmp}/missing.cpp", "-o", "{tmp}/x.gp"], {}, 1, "source file must exist, got '"),
        (
            ["{tmp}/good.cpp", "-o", "{tmp}/x.gp"],
            {"CXX": "no-such-compiler"},
            1,
            "installed, got 'no-such-compiler'",
        ),
        (["{tmp}/bad.cpp", "-o", "{tmp}/x.gp"], {}, 1, "no template named 'Output'"),
        (["{tmp}/other.gp", "-o", "{tmp}/x.gp"], {}, 1, "a .gp to link must be made by popc"),
        (["-o", "{tmp}/x.gp"], {}, 2, "no source file"),
        (["{tmp}/good.cpp"], {}, 2, "-o is needed"),
    ],
)
def test_errors(tmp_path, args, env, status, message):
    (tmp_path / "good.cpp").write_text(
        "#include <poplar/Vertex.hpp>\n"
        "struct A : poplar::Vertex { poplar::Output<int> o; void compute() { *o = 1; } };\n"
    )
    (tmp_path / "bad.cpp").write_text("struct A { Output<int> o; };\n")
    (tmp_path / "other.gp").write_text("not an object")
    r = popc(*[a.format(tmp=tmp_path) for a in args], **env)
    assert r.returncode == status and message in r.stderr, r.stderr
    assert not (tmp_path / "x.gp").exists()


def test_warnings_that_a_program_asks_for_are_those_of_its_own_code(tmp_path):
    source = tmp_path / "a.cpp"
    vertex = (
        "#include <poplar/HalfFloat.hpp>\n#include <poplar/Vertex.hpp>\n"
        "struct A : poplar::Vertex {{ poplar::Input<float> i; poplar::Output<half> o;\n"
        "  void compute() {{ *o = half(float({value})); }} }};\n"
    )
    flags = ["-Wall", "-Wextra", "-Wdouble-promotion", "-Wconversion", "-Wshadow", "-Werror"]
    for value, status in (("*i * 2.f", 0), ("*i * 2.0", 1)):
        source.write_text(vertex.format(value=value))
        r = popc(source, "-o", tmp_path / "a.gp", *flags)
        assert r.returncode == status and ("a.cpp:4" in r.stderr) == (status == 1), r.stderr


def test_functions_of_cmath_outside_std_take_floats(tmp_path):
    """As with the IPU's standard library. Else abs(0.5f) would be abs(int), which is 0."""
    found(
        tmp_path,
        "#include <cmath>\n#include <type_traits>\n"
        + "".join(
            f"static_assert(std::is_same<decltype({call}), float>::value, {chr(34)}{call}{chr(34)});\n"
            for call in ["abs(0.5f)", "sqrt(0.5f)", "pow(0.5f, 2.f)", "floor(0.5f)"]
        ),
    )


WIDE = """
    #include <cstddef>
    #include <cstdint>
    #include <poplar/Vertex.hpp>
    struct A : poplar::Vertex {{
      poplar::Output<{edge}> o;
      poplar::Vector<poplar::Input<poplar::Vector<{list}>>> rows;
      {state} n;
      bool compute() {{
        {body}
        return true;
      }}
    }};
"""
NARROW = dict(edge="unsigned", list="int", state="unsigned short", body="")


@pytest.mark.parametrize(
    ("where", "wide"),
    [
        *[("edge", wide) for wide in ("std::size_t", "long", "unsigned long", "uint_fast32_t")],
        ("edge", "std::ptrdiff_t"),
        *[("list", wide) for wide in ("std::size_t", "long", "const std::ptrdiff_t")],
        *[
            ("state", wide) for wide in ("long", "const std::ptrdiff_t")
        ],  # without sign it is a warning, below
    ],
)
def test_a_field_whose_width_differs_on_a_device_is_refused(tmp_path, where, wide):
    source = tmp_path / "a.cpp"
    source.write_text(WIDE.format(**{**NARROW, where: wide}))
    r = popc(source, "-o", tmp_path / "a.gp")
    assert r.returncode == 1 and not (tmp_path / "a.gp").exists()
    name = {"edge": "o", "list": "rows", "state": "n"}[where]
    assert f"field '{name}' must have a type of the same width on host and device, got " in r.stderr
    assert wide in r.stderr and "32 bits on a device" in r.stderr


def test_control_fields_of_the_same_width_are_taken(tmp_path):
    source = tmp_path / "a.cpp"
    source.write_text(WIDE.format(**NARROW))
    r = popc(source, "-o", tmp_path / "a.gp", "-Werror", "-Werror=width")
    assert r.returncode == 0 and r.stderr == "", r.stderr


#: statements, and what of each is named
STATEMENTS = [
    ("std::size_t i = rows.size(); *o = i;", "variable 'i'"),
    ("auto j = sizeof(int); *o = j;", "variable 'j'"),
    ("long table[3] = {}; *o = table[2];", "variable 'table'"),
    ("*o = static_cast<std::size_t>(n) >> 3;", "cast"),
    ("auto f = [](unsigned long x) { return 3u; }; *o = f(2);", "parameter 'x'"),
]


@pytest.mark.parametrize(
    ("changed", "line", "named"),
    [
        (dict(body="\n".join(text for text, _ in STATEMENTS)), 10, [name for _, name in STATEMENTS]),
        (dict(state="const std::size_t"), 8, ["field 'n'"]),
        (dict(state="unsigned long"), 8, ["field 'n'"]),
    ],
)
def test_elsewhere_it_is_a_warning(tmp_path, changed, line, named):
    """As the SDK's own codelets have it, and others' built with -Werror; with -Werror=width an error."""
    source = tmp_path / "a.cpp"
    source.write_text(WIDE.format(**{**NARROW, **changed}))
    r = popc(source, "-o", tmp_path / "a.gp", "-Werror", "-O0")
    assert r.returncode == 0 and (tmp_path / "a.gp").exists()
    warnings = r.stderr.splitlines()
    assert len(warnings) == len(named)
    for at, (warning, name) in enumerate(zip(warnings, named), line):
        assert (
            warning.startswith(f"popc: warning: {source}:{at}:") and f": {name} must have a type" in warning
        )
    r = popc(source, "-o", tmp_path / "b.gp", "-Werror=width")
    assert r.returncode == 1 and all(f": {name} must have a type" in r.stderr for name in named)
    assert not (tmp_path / "b.gp").exists()


def test_an_input_of_size_t_is_taken_and_one_of_64_bits_is_not(tmp_path):
    """Both are one type here, and only the first has 32 bits on a device."""
    source = tmp_path / "a.cpp"
    text = """
        #include <cstdint>
        #include <poplar/Vertex.hpp>
        struct A : poplar::Vertex {{ poplar::Input<{}> n; bool compute() {{ return *n != 0; }} }};
    """
    for wide, flags, status, said in (
        ("std::size_t", (), 0, "warning: "),
        ("std::size_t", ("-Werror=width",), 1, "field 'n' must have a type of the same width"),
        ("std::uint64_t", (), 1, "vertex fields hold"),
    ):
        source.write_text(text.format(wide))
        r = popc(source, "-o", tmp_path / "a.gp", *flags)
        assert r.returncode == status and said in r.stderr, r.stderr


def test_what_has_one_width_passes(tmp_path):
    """64 bits that are 64 on both; sizes of vectors, which are unsigned; what a library declares."""
    body = """
        std::uint64_t a = 3; std::int64_t b = 4; unsigned long long c = 5; long long d = 6;
        const auto size = rows.size(); std::uint32_t e = size;
        *o = static_cast<unsigned>(a + std::uint64_t(b) + c) + unsigned(d) + e;
    """
    source = tmp_path / "a.cpp"
    source.write_text("#include <algorithm>\n" + WIDE.format(**{**NARROW, "body": body}))
    r = popc(source, "-o", tmp_path / "a.gp", "-Werror", "-Werror=width")
    assert r.returncode == 0 and r.stderr == "", r.stderr


def test_missing_libclang_is_named(tmp_path):
    (tmp_path / "clang.py").write_text("raise ImportError('not here')\n")
    (tmp_path / "good.cpp").write_text("#include <poplar/Vertex.hpp>\n")
    r = popc(tmp_path / "good.cpp", "-o", tmp_path / "x.gp", PYTHONPATH=str(tmp_path))
    assert r.returncode == 1
    assert "libclang must be installed (pip install libclang), got: not here" in r.stderr


def test_c_sources_are_compiled_as_c_and_linked(tmp_path):
    (tmp_path / "twice.c").write_text(
        "int twice(int x) { register int class = 2; return class * x; } /* no C++ */\n"
    )
    (tmp_path / "v.cpp").write_text(
        """
        #include <poplar/Vertex.hpp>
        extern "C" int twice(int);
        struct V : poplar::Vertex {
          poplar::Output<int> o;
          bool compute() { *o = twice(21); return true; }
        };
        """
    )
    for name in ("twice.c", "v.cpp"):
        r = popc(tmp_path / name, "-o", tmp_path / f"{name}.gp")
        assert r.returncode == 0 and r.stderr == "", r.stderr
    r = popc(tmp_path / "v.cpp.gp", tmp_path / "twice.c.gp", "-o", tmp_path / "both.gp")
    assert r.returncode == 0, r.stderr
    undefined = subprocess.run(["nm", "-D", "-u", tmp_path / "both.gp"], capture_output=True, text=True)
    assert undefined.returncode == 0 and "twice" not in undefined.stdout
    r = popc("--list-vertices", tmp_path / "twice.c", tmp_path / "v.cpp")
    assert r.stdout == "V: o\n"


def test_flags_for_the_ipus_own_compiler_are_ignored(tmp_path):
    source = tmp_path / "v.cpp"
    source.write_text(
        "#include <poplar/Vertex.hpp>\n"
        "struct V : poplar::Vertex { poplar::Output<int> o; bool compute() { *o = N; return true; } };\n"
    )
    flags = ["-X", "-no-such-flag", "-X-mllvm", "-X--Ot", "-DN=3", "-target", "ipu2,ipu21"]
    r = popc(source, *flags, "-o", tmp_path / "v.gp")
    assert r.returncode == 0 and r.stderr == "", r.stderr


def test_attributes_of_the_ipus_own_compiler_are_no_warning(tmp_path):
    source = tmp_path / "v.cpp"
    source.write_text(
        "#include <poplar/Vertex.hpp>\n"
        'struct [[poplar::constraint("elem(*i) != elem(*o)")]] V : poplar::Vertex {\n'
        "  poplar::Output<int> o; poplar::Input<int> i; bool compute() { *o = *i; return true; } };\n"
    )
    r = popc(source, "-o", tmp_path / "v.gp")
    assert r.returncode == 0 and "unknown attribute" not in r.stderr, r.stderr  # as Clang calls it


def test_what_codelets_take_for_granted(tmp_path):
    """Headers without their folder, builtins without a header, macros, pointers to what is read."""
    source = tmp_path / "v.cpp"
    source.write_text(
        """
        #include <poplar/Vertex.hpp>
        #include <poplar/VectorListTypes.hpp>
        #include <StackSizeDefs.hpp>
        #include <ipu_intrinsics>
        #ifndef __NO_MATH_ERRNO__
        #error "functions of <cmath> set errno, so a compiler may not move them out of a loop"
        #endif
        #define quarter 0.25f
        inline bool seed(unsigned s) { __builtin_ipu_uput(s, 7); __builtin_ipu_put(s, 1); return true; }
        struct V : poplar::Vertex {
          poplar::Input<poplar::Vector<float, poplar::VectorLayout::ONE_PTR, 8>> in;
          poplar::Output<poplar::Vector<float>> out;
          bool compute() {
            float2 *pairs = reinterpret_cast<float2 *>(&in[0]);
            const float2 least = __builtin_ipu_min(pairs[0], pairs[1]);
            const float2 grown = least + __builtin_ipu_f32v2grand();
            out[0] = __builtin_ipu_max(ipu::andc(grown, least)[0], quarter);
            out[1] = __builtin_ipu_f16tof32(__builtin_ipu_f32tof16(__builtin_ipu_ln(grown[1])));
            return __builtin_ipu_isfinite(out[1]);
          }
        };
        """
    )
    r = popc(source, "-o", tmp_path / "v.gp")
    assert r.returncode == 0 and r.stderr == "", r.stderr
    source.write_text(source.read_text().replace("return __builtin_ipu_isfinite", "return seed(7) && "))
    r = popc(source, "-o", tmp_path / "v.gp")
    assert r.returncode == 1 and "__builtin_ipu_uput" in r.stderr  # there are no registers to write
