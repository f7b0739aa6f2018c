// SPDX-License-Identifier: Apache-2.0
// In the style of a tutorial: a matrix times a vector, matvec ROWS COLS [OPTION VALUE]... Options
// are those of the profile summary, which is printed if there are any. The program compiles its
// codelet from source, which is this file: with __POPC__ it is the codelet, otherwise the host
// program.
#ifdef __POPC__

#include <poplar/Vertex.hpp>

class DotProduct : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<float>> a;
  poplar::Input<poplar::Vector<float>> b;
  poplar::Output<float> out;
  bool compute() {
    float sum = 0;
    for (unsigned i = 0; i < a.size(); ++i)
      sum += a[i] * b[i];
    *out = sum;
    return true;
  }
};

#else

#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/IPUModel.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <vector>

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc < 3 || argc % 2 == 0) {
    std::cerr << "usage: " << argv[0] << " rows cols [option value]...\n";
    return 2;
  }
  const std::size_t rows = std::strtoul(argv[1], nullptr, 10),
                    cols = std::strtoul(argv[2], nullptr, 10);

  // An IPU if there is one, else the model.
  auto manager = DeviceManager::createDeviceManager();
  auto devices = manager.getDevices(TargetType::IPU, 1);
  auto it = std::find_if(devices.begin(), devices.end(), [](Device &d) { return d.attach(); });
  Device device = it != devices.end() ? std::move(*it) : IPUModel().createDevice();
  Target target = device.getTarget();

  Graph graph(target);
  graph.addCodelets(__FILE__, CodeletFileType::Auto, "-O3");

  Tensor matrix = graph.addVariable(FLOAT, {rows, cols}, "matrix");
  Tensor vector = graph.addVariable(FLOAT, {cols}, VariableMappingMethod::LINEAR, "vector");
  Tensor product = graph.addVariable(FLOAT, {rows}, "product");
  ComputeSet multiply = graph.addComputeSet("multiply");
  for (std::size_t r = 0; r < rows; ++r) {
    const unsigned tile = static_cast<unsigned>(r % target.getNumTiles());
    VertexRef v = graph.addVertex(multiply, "DotProduct",
                                  {{"a", matrix[r]}, {"b", vector}, {"out", product[r]}});
    graph.setTileMapping(matrix[r], tile);
    graph.setTileMapping(product[r], tile);
    graph.setTileMapping(v, tile);
    if (cols > 1) // the summary must say where estimates are missing
      graph.setPerfEstimate(v, 20 + 3 * cols);
  }
  auto matrixStream = graph.addHostToDeviceFIFO("matrix", FLOAT, rows * cols);
  auto vectorStream = graph.addHostToDeviceFIFO("vector", FLOAT, cols);
  auto productStream = graph.addDeviceToHostFIFO("product", FLOAT, rows);
  auto prog = Sequence({Copy(matrixStream, matrix), Copy(vectorStream, vector), Execute(multiply),
                        Copy(product, productStream)});

  Engine engine(graph, prog);
  engine.load(device);
  std::vector<float> hostMatrix(rows * cols), hostVector(cols), hostProduct(rows);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c)
      hostMatrix[r * cols + c] = static_cast<float>(r + 2 * c);
  for (std::size_t c = 0; c < cols; ++c)
    hostVector[c] = static_cast<float>(c % 3);
  engine.connectStream("matrix", hostMatrix.data());
  engine.connectStream("vector", hostVector.data());
  engine.connectStream("product", hostProduct.data());
  engine.run();
  for (float x : hostProduct)
    std::cout << x << " ";
  std::cout << "\n";
  OptionFlags options;
  for (int i = 3; i + 1 < argc; i += 2)
    options.set(argv[i], argv[i + 1]);
  if (argc > 3)
    engine.printProfileSummary(std::cout, options);
}
#endif
