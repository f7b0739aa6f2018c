// SPDX-License-Identifier: Apache-2.0
// Control programs, engines and codelet files.
#include "cases.hpp"
#include <poplar/CSRFunctions.hpp>
#include <poplar/DeviceManager.hpp>

void control(Cases &c) {
  c.add("predicate_of_rank_1", [](bool bad) {
    Bench b;
    Tensor t = b.variable(BOOL, {1}, "t");
    b.prog.add(If(bad ? t : t[0], Sequence(), Sequence()));
    b.run();
  });
  c.add("predicate_of_float", [](bool bad) {
    Bench b;
    b.prog.add(RepeatWhileTrue(Sequence(), bad ? b.x[0][0] : b.flag, Sequence()));
    b.run();
  });
  c.add("switch_control_type", [](bool bad) {
    Bench b;
    Tensor t = b.variable(bad ? SHORT : INT, {}, "t");
    b.prog.add(Switch(t, {{0, Sequence()}}));
    b.run();
  });
  c.add("switch_repeats_case", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.prog.add(Switch(t, {{3, Sequence()}, {bad ? 3 : 4, Sequence()}}));
    b.run();
  });
  c.add("switch_out_of_bounds", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.graph.setInitialValue(t, bad ? 7 : 1);
    b.prog.add(Switch::switchWithBoundsChecking(t, {{0, Sequence()}, {1, Sequence()}}));
    b.run();
  });
  c.add("switch_reaches_unreachable_default", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.graph.setInitialValue(t, bad ? 2 : 1);
    Switch chosen = Switch::switchWithUnreachableDefault(t);
    chosen.add(0, Sequence()).add(1, Sequence());
    b.prog.add(chosen);
    b.run();
  });
  c.add("execute_predicate_type", [](bool bad) {
    Bench b;
    const Tensor predicate = b.variable(bad ? INT : BOOL, {}, "predicate");
    b.affine(b.x[0], b.y[0]);
    b.prog.add(Execute(b.cs, predicate));
  });
  c.add("abort_on_condition", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.flag, bad);
    b.prog.add(AbortOnCondition(b.flag, std::string("the condition holds")));
    b.run();
  });
  c.add("error_program", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.graph.setInitialValue(t, 17);
    b.graph.setInitialValue(b.flag, bad);
    b.prog.add(If(b.flag, ErrorProgram("seen", t), Sequence()));
    b.run();
  });
  c.add("function_calls_itself", [](bool bad) {
    Bench b, other;
    const Function first = other.graph.addFunction(Sequence()); // and so of b
    Function f = b.graph.addFunction(bad ? Program(Call(first)) : Program(Sequence()));
    b.prog.add(Call(f));
    b.run();
  });
}

void engine(Cases &c) {
  c.add("stochastic_rounding", [](bool bad) {
    Bench b;
    b.run({{"prng.enableStochasticRounding", bad ? "true" : "false"}});
  });
  c.add("stochastic_rounding_program", [](bool bad) {
    Bench b;
    setStochasticRounding(b.graph, b.prog, bad);
    b.run();
  });
  c.add("floating_point_words_of_nobody", [](bool bad) {
    Bench b;
    Tensor words = b.variable(UNSIGNED_INT, {4}, "words");
    b.graph.setInitialValue<unsigned>(words, bad ? ~0u : 0u);
    setFloatingPointBehaviour(b.graph, b.prog, words);
    b.run();
  });
  c.add("floating_point_words_of_three_tiles", [](bool bad) {
    Bench b;
    setFloatingPointBehaviour(b.graph, b.prog, b.variable(UNSIGNED_INT, {bad ? 3u : 4u}, "words"));
  });
  c.add("compute_set_of_another_graph", [](bool bad) {
    Bench b, other;
    const ComputeSet second = other.graph.addComputeSet("second");
    b.prog.add(Execute(bad ? second : b.cs));
    b.run();
  });
  c.add("device_that_is_not_there", [](bool bad) {
    if (bad)
      DeviceManager().getDevice(99);
  });
  c.add("options_not_json", [](bool bad) {
    OptionFlags flags;
    readJSON(bad ? "{\"debug.instrument\": }" : "{\"debug.instrument\": true}", flags);
  });
  c.add("model_version", [](bool bad) { IPUModel(bad ? "ipu3" : "ipu2").createDevice(); });
  c.add("run_before_load", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    if (!bad)
      engine.load(b.device);
    engine.run();
  });
  c.add("unknown_program", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    engine.run(bad ? 1 : 0);
  });
  c.add("device_of_another_size", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(emulatedDevice(bad ? 5 : 4));
  });
  c.add("tile_memory", [](bool bad) {
    Bench b;
    Tensor big = b.graph.addVariable(FLOAT, {bad ? 160000u : 150000u}, "big");
    b.graph.setTileMapping(big, 2);
    b.run();
  });
  c.add("tile_memory_of_landing", [](bool bad) {
    // 300 kB on tile 2, read on tile 3, which holds 400 kB itself
    Bench b;
    Tensor big = b.graph.addVariable(FLOAT, {75000}, "big"),
           own = b.graph.addVariable(FLOAT, {100000}, "own");
    b.graph.setTileMapping(big, 2);
    b.graph.setTileMapping(own, bad ? 3 : 1);
    VertexRef v = b.affine(big, b.variable(FLOAT, {1}, "o"));
    b.graph.setTileMapping(v, 3);
    Engine engine(b.graph, Execute(b.cs));
  });
  c.add("serialise", [](bool bad) {
    Bench b;
    Executable exe = compileGraph(b.graph, {b.prog});
    std::stringstream s;
    if (bad)
      exe.serialize(s);
    Engine engine(std::move(exe));
  });
}

void codeletFiles(Cases &c) {
  c.add("missing_codelet_file", [](bool bad) {
    Bench b;
    Graph g(b.device);
    g.addCodelets(bad ? codelets + ".not" : codelets);
  });
  c.add("codelet_syntax", [](bool bad) {
    Bench b;
    std::stringstream s(
        "#include <poplar/Vertex.hpp>\n"
        "struct New : poplar::Vertex { poplar::Output<float> o; bool compute() { *o = 1" +
        std::string(bad ? "" : ";") + " return true; } };");
    b.graph.addCodelets(s);
  });
  c.add("codelet_defined_twice", [](bool bad) {
    Bench b;
    std::stringstream s(
        "#include <poplar/Vertex.hpp>\nnamespace test { struct " +
        std::string(bad ? "Increment" : "Decrement") +
        " : poplar::Vertex { poplar::Output<float> o; bool compute() { return true; } }; }");
    b.graph.addCodelets(s);
  });
  c.add("object_not_codelets", [](bool bad) {
    Bench b;
    Graph g(b.device);
    g.addCodelets(bad ? std::string("/proc/self/exe") : codelets, CodeletFileType::Object);
  });
  c.add("codelet_field_type", [](bool bad) {
    Bench b;
    std::stringstream s(
        "#include <poplar/Vertex.hpp>\nstruct Bad : poplar::Vertex { poplar::Output<float> o; " +
        std::string(bad ? "double" : "float") + " d; bool compute() { return true; } };");
    b.graph.addCodelets(s);
  });
}
