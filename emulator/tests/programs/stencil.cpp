// SPDX-License-Identifier: Apache-2.0
// In the style of a tutorial: heat along a rod, cut over tiles, with halos exchanged every step.
// stencil CODELETS.gp TILES CELLS STEPS prints the final temperatures.
#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 5)
    return 2;
  const unsigned tiles = std::stoul(argv[2]), cells = std::stoul(argv[3]),
                 steps = std::stoul(argv[4]);
  Device device = emulatedDevice(tiles);
  Graph graph(device);
  std::stringstream source;
  source << R"(
    #include <poplar/Vertex.hpp>
    using namespace poplar;
    template <typename T> class Diffuse : public Vertex {
    public:
      Input<Vector<T>> left, right;   // halos: empty at the ends of the rod
      Input<Vector<T>> in;
      Output<Vector<T>> out;
      const T rate;
      Diffuse();
      void compute() {
        const unsigned n = in.size();
        for (unsigned i = 0; i < n; ++i) {
          const T l = i ? in[i - 1] : left.size() ? left[0] : in[i];
          const T r = i + 1 < n ? in[i + 1] : right.size() ? right[0] : in[i];
          out[i] = in[i] + rate * (l - in[i] + (r - in[i]));
        }
      }
    };
    template class Diffuse<float>;
  )";
  graph.addCodelets(source);
  if (!graph.hasCodelet("Diffuse<float>"))
    return 1;
  Tensor a = graph.addVariable(FLOAT, {cells}, VariableMappingMethod::LINEAR, "a");
  Tensor b = graph.clone(a, "b");
  std::vector<float> start(cells, 0.0f);
  start[cells / 2] = 1024.0f;
  graph.setInitialValue<float>(a, start);
  auto step = [&](const Tensor &from, const Tensor &to) {
    ComputeSet cs = graph.addComputeSet("diffuse");
    const auto mapping = graph.getTileMapping(from);
    for (unsigned tile = 0; tile < mapping.size(); ++tile) {
      for (const Interval &i : mapping[tile]) {
        VertexRef v = graph.addVertex(cs, "Diffuse<float>");
        graph.connect(v["left"], from.slice(i.begin() ? i.begin() - 1 : 0, i.begin()));
        graph.connect(v["right"], from.slice(i.end(), std::min<std::size_t>(cells, i.end() + 1)));
        graph.connect(v["in"], from.slice(i));
        graph.connect(v["out"], to.slice(i));
        graph.setInitialValue(v["rate"], 0.25f);
        graph.setTileMapping(v, tile);
      }
    }
    return Execute(cs);
  };
  graph.createHostRead("a", a);
  Engine engine(graph, Repeat(steps, Sequence{step(a, b), step(b, a)}));
  engine.load(device);
  engine.run();
  for (float x : readTensor<float>(engine, "a", cells))
    std::cout << x << " ";
  std::cout << "\n";
}
