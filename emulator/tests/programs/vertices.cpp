// SPDX-License-Identifier: Apache-2.0
// Every kind of field and vertex: vertices CODELETS.gp TILES. One JSON object of results.
#include <poplar/HalfFloat.hpp>

#include <sstream>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

// Transposes eight matrices of 8 times 16 elements three times, with the vertices that a graph
// knows without codelets. Returns what these give, one behind the other.
static Tensor transposed(Graph &graph, Sequence &prog, const Type &type, const Tensor &in) {
  const std::string suffix = "<" + type.toString().str() + ">";
  const unsigned side = type == UNSIGNED_CHAR ? 8 : 4, rows = 8 / side, cols = 16 / side;
  Tensor out = graph.addVariable(type, {3, 8, 8 * 16}, VariableMappingMethod::LINEAR, "transposed");
  ComputeSet cs = graph.addComputeSet("transpose");
  std::vector<VertexRef> all;
  const auto blocks = [&](const char *kind, const Tensor &src, const Tensor &dst) {
    VertexRef v = graph.addVertex(cs, "poplar_rt::" + (kind + suffix),
                                  {{"src", src.flatten()}, {"dst", dst.flatten()}});
    graph.setInitialValue(v["numSrcRowsD4Or8"], rows);
    graph.setInitialValue(v["numSrcColumnsD4Or8"], cols);
    all.push_back(v);
    return v;
  };
  VertexRef byMatrix = blocks("Transpose1D", in, out[0]);
  graph.setInitialValue(byMatrix["numTranspositions"], 2u); // of two workers; of the others one
  graph.setInitialValue(byMatrix["workerCount"], 2u);
  VertexRef single = blocks("Transpose1DSingleWorker", in, out[1]);
  graph.setInitialValue(single["numTranspositionsM1"], 7u);
  // Three matrices, a row of blocks to a worker; the others as a list.
  VertexRef split = blocks("SplitTranspose1D", in.slice(0, 3), out[2].slice(0, 3));
  std::vector<unsigned short> parts;
  for (unsigned i = 0; i < 3; ++i)
    for (unsigned r = 0; r < rows; ++r)
      for (unsigned part : {i * 128 / side + r * 16, i * 128 / side + r, 1u, cols})
        parts.push_back(static_cast<unsigned short>(part));
  Tensor workList = graph.addConstant<unsigned short>(UNSIGNED_SHORT, {parts.size()}, parts);
  graph.setTileMapping(workList, 0);
  graph.connect(split["workList"], workList);
  VertexRef lists =
      graph.addVertex(cs, "poplar_rt::Transpose2D" + suffix,
                      {{"src", in.slice(3, 8).flatten(1, 3)}, {"dst", out[2].slice(3, 8)}});
  graph.setInitialValue(lists["numSrcRows"], 8u);
  graph.setInitialValue(lists["numSrcColumns"], 16u);
  all.push_back(lists);
  for (const VertexRef &v : all) {
    graph.setTileMapping(v, 0);
    if (graph.getPerfEstimate(v).cycles < 3 * 128 * graph.getTarget().getTypeSize(type) / 8)
      throw std::runtime_error("estimated as faster than memory");
  }
  prog.add(Execute(cs));
  return out;
}

int main(int argc, char **argv) {
  if (argc != 3)
    return 2;
  const unsigned tiles = std::stoul(argv[2]);
  Device device = emulatedDevice(tiles);
  Graph graph(device);
  graph.addCodelets(argv[1]);
  Sequence prog;

  // Affine: contiguous, strided, reversed and repeated inputs, on any tile.
  Tensor x = graph.addVariable(FLOAT, {6, 8}, VariableMappingMethod::LINEAR, "x");
  std::vector<float> values(48);
  for (unsigned i = 0; i < 48; ++i)
    values[i] = static_cast<float>(i);
  graph.setInitialValue<float>(x, values);
  Tensor y = graph.addVariable(FLOAT, {4, 8}, VariableMappingMethod::LINEAR, "y");
  ComputeSet affine = graph.addComputeSet("affine");
  const std::vector<Tensor> inputs = {x[1], x.transpose()[3].slice(0, 6), x[2].reverse(0),
                                      x[0].slice(4, 5).broadcast(8, 0)};
  const std::vector<Tensor> outputs = {y[0], concat(y[1].slice(0, 3), y[1].slice(5, 8)),
                                       y[2].reverse(0), y[3]};
  for (unsigned i = 0; i < 4; ++i) {
    VertexRef v = graph.addVertex(affine, "test::Affine", {{"in", inputs[i]}, {"out", outputs[i]}});
    graph.setInitialValue(v["factor"], 2.0f);
    graph.setInitialValue(v["bias"], 0.25);
    graph.setTileMapping(v, i % tiles);
  }
  graph.setInitialValue<float>(y, -1.0f);
  prog.add(Execute(affine));

  // InOut through a buffer.
  Tensor inOut = graph.addVariable(FLOAT, {3, 4}, VariableMappingMethod::LINEAR, "inOut");
  graph.setInitialValue<float>(inOut, 10.0f);
  ComputeSet increment = graph.addComputeSet("increment");
  VertexRef inc = graph.addVertex(increment, "test::Increment",
                                  {{"data", inOut.transpose().flatten().slice(2, 7)}});
  graph.setTileMapping(inc, tiles - 1);
  prog.add(Repeat(3, Execute(increment)));

  // Workers.
  Tensor ids = graph.addVariable(UNSIGNED_INT, {15}, VariableMappingMethod::LINEAR, "ids");
  ComputeSet mixed = graph.addComputeSet("mixed");
  VertexRef workers = graph.addVertex(mixed, "test::WorkerIds");
  graph.connect(workers["out"], ids);
  graph.setInitialValue(workers["n"], 15u);
  graph.setTileMapping(workers, 0);

  Tensor ways = graph.addVariable(UNSIGNED_INT, {2, 6}, VariableMappingMethod::LINEAR, "ways");
  graph.setInitialValue<unsigned>(ways, 0u);
  for (unsigned byWorker : {0, 1})
    graph.setTileMapping(graph.addVertex(mixed, byWorker ? "test::Ways<true>" : "test::Ways<false>",
                                         {{"data", ways[byWorker]}}),
                         0);

  // Lists of vectors, by 2-D tensor and one by one; half and float.
  Tensor h = graph.addConstant<float>(HALF, {2, 3}, {1, 2, 3, 0.5f, 0.25f, 65519}, "h");
  graph.setTileMapping(h, 0);
  Tensor sums = graph.addVariable(FLOAT, {2}, VariableMappingMethod::LINEAR, "sums");
  VertexRef rowsH = graph.addVertex(mixed, "test::WeightedRows<half>");
  graph.connect(rowsH["rows"], h);
  graph.connect(rowsH["sum"], sums[0]);
  const std::vector<unsigned> weights = {1, 10};
  graph.setInitialValue<unsigned>(rowsH["weights"], weights);
  graph.setTileMapping(rowsH, tiles - 1);
  VertexRef rowsF = graph.addVertex(mixed, "test::WeightedRows<float>");
  graph.setFieldSize(rowsF["rows"], 2);
  graph.connect(rowsF["rows"][0], x[5].slice(1, 4));
  graph.connect(rowsF["rows"][1], x.slice(0, 6).transpose()[7].slice(0, 5));
  graph.connect(rowsF["sum"], sums[1]);
  graph.setInitialValue<unsigned>(rowsF["weights"], weights);
  graph.setTileMapping(rowsF, 0);

  // Lists of scalars; template arguments that are enumerators, bools and negative numbers.
  Tensor candidates = graph.addConstant<int>(INT, {4}, {3, -5, 9, 2}, "candidates");
  graph.setTileMapping(candidates, 0);
  Tensor picked = graph.addVariable(INT, {2}, VariableMappingMethod::LINEAR, "picked");
  VertexRef least = graph.addVertex(mixed, "test::Pick<test::Order::Ascending,false,0>",
                                    {{"candidates", candidates}, {"best", picked[0]}});
  graph.setTileMapping(least, 0);
  VertexRef most = graph.addVertex(
      mixed, "test::Pick<test::Order::Descending,true,-7>",
      {{"candidates", ArrayRef<Tensor>({candidates[1], candidates[0], candidates[3]})},
       {"best", picked[1]}});
  graph.setTileMapping(most, 0);

  // Alignment: a slice that starts at an odd half reaches the vertex aligned, and results get back.
  Tensor a = graph.addVariable(HALF, {9}, VariableMappingMethod::LINEAR, "a");
  Tensor b = graph.addVariable(HALF, {9}, VariableMappingMethod::LINEAR, "b");
  graph.setInitialValue<float>(a, 1.5f);
  graph.setInitialValue<float>(b, ArrayRef<float>({0, 1, 2, 3, 4, 5, 6, 7, 8}));
  Tensor remainder =
      graph.addVariable(UNSIGNED_INT, {}, VariableMappingMethod::LINEAR, "remainder");
  VertexRef aligned =
      graph.addVertex(mixed, "test::Aligned",
                      {{"in", a.slice(1, 6)}, {"out", b.slice(3, 8)}, {"remainder", remainder}});
  graph.setTileMapping(aligned, 0);

  // VectorList, inherited fields, state of other types, a connected value.
  Tensor listSums = graph.addVariable(FLOAT, {2}, VariableMappingMethod::LINEAR, "listSums");
  VertexRef list =
      graph.addVertex(mixed, "test::Rows", {{"rows", x.slice(0, 2)}, {"sums", listSums}});
  graph.setInitialValue(list["scale"], 0.5f);
  graph.setInitialValue(list["flag"], true);
  graph.setInitialValue(list["s"], -3);
  graph.setInitialValue(list["c"], 200);
  graph.setInitialValueHalf(list["h"], half(0.125f).bits());
  graph.setTileMapping(list, 0);
  Tensor below = graph.addVariable(BOOL, {}, VariableMappingMethod::LINEAR, "below");
  VertexRef value = graph.addVertex(mixed, "test::Below");
  graph.connect(value["value"], 41u);
  graph.connect(value["below"], below);
  graph.setInitialValue(value["limit"], 42);
  graph.setTileMapping(value, tiles - 1);
  prog.add(Execute(mixed));

  std::vector<std::pair<std::string, Tensor>> transposes;
  for (const Type &type : {UNSIGNED_CHAR, SHORT, UNSIGNED_INT}) {
    Tensor in = graph.addVariable(type, {8, 8, 16}, VariableMappingMethod::LINEAR, "in");
    std::vector<unsigned> numbers(in.numElements());
    for (unsigned i = 0; i < numbers.size(); ++i)
      numbers[i] = i * 7 % 127;
    graph.setInitialValue<unsigned>(in, numbers);
    transposes.push_back({type.toString().str(), transposed(graph, prog, type, in)});
    graph.createHostRead(type.toString(), transposes.back().second);
  }

  for (const auto &t : {std::pair<const char *, Tensor>("y", y),
                        {"inOut", inOut},
                        {"ids", ids},
                        {"ways", ways},
                        {"sums", sums},
                        {"picked", picked},
                        {"b", b},
                        {"remainder", remainder},
                        {"listSums", listSums},
                        {"below", below}})
    graph.createHostRead(t.first, t.second);
  if (Tensor() != Tensor() || Tensor() == y)
    return 1;
  std::ostringstream drawn;
  graph.outputVertexGraph(drawn);
  Engine engine(graph, prog);
  engine.load(device);
  engine.run(0);
  const auto bits = readTensor<std::uint16_t>(engine, "b", 9);
  std::vector<float> bf(9);
  copyDeviceHalfToFloat(device.getTarget(), bits.data(), bf.data(), 9);
  std::cout << "{\"y\":" << jsonList(readTensor<float>(engine, "y", 32))
            << ",\"inOut\":" << jsonList(readTensor<float>(engine, "inOut", 12))
            << ",\"ids\":" << jsonList(readTensor<unsigned>(engine, "ids", 15))
            << ",\"ways\":" << jsonList(readTensor<unsigned>(engine, "ways", 12))
            << ",\"transposed 1\":"
            << jsonList(readTensor<std::uint8_t>(engine, "unsigned char", 3 * 1024))
            << ",\"transposed 2\":" << jsonList(readTensor<short>(engine, "short", 3 * 1024))
            << ",\"transposed 4\":"
            << jsonList(readTensor<unsigned>(engine, "unsigned int", 3 * 1024))
            << ",\"sums\":" << jsonList(readTensor<float>(engine, "sums", 2))
            << ",\"picked\":" << jsonList(readTensor<int>(engine, "picked", 2))
            << ",\"b\":" << jsonList(bf)
            << ",\"remainder\":" << jsonList(readTensor<unsigned>(engine, "remainder", 1))
            << ",\"listSums\":" << jsonList(readTensor<float>(engine, "listSums", 2))
            << ",\"below\":" << jsonList(readTensor<std::uint8_t>(engine, "below", 1))
            << ",\"drawn\":" << quoted(drawn.str()) << "}\n";
}
