// SPDX-License-Identifier: Apache-2.0
// What the SDK has and the emulator has not: each throws an error with its name.
#include "not_implemented.hpp"

#include <poplar/Engine.hpp>
#include <poplar/MetadataCreation.hpp>
#include <poplar/Quarter.hpp>
#include <poplar/RandomSeed.hpp>

namespace poplar {

using core::notImplemented;

void program::dumpProgram(const Graph &, const program::Program &, std::ostream &) {
  notImplemented("dumpProgram");
}

class Module {};
class Preallocations {};

Module compileModule(const Graph &, program::Program, const OptionFlags &, ProgressFunc,
                     const DebugContext &) {
  notImplemented("compileModule");
}
Module compileModule(const Graph &, program::Program, const Preallocations &, const OptionFlags &,
                     ProgressFunc, const DebugContext &) {
  notImplemented("compileModule");
}
Executable compileGraph(const Graph &, ArrayRef<program::Program>, const Preallocations &,
                        const OptionFlags &, ProgressFunc, const DebugContext &) {
  notImplemented("compileGraph with Preallocations");
}
Executable compileGraph(const Graph &, ArrayRef<program::Program>, bool, const OptionFlags &,
                        ProgressFunc, const DebugContext &) {
  notImplemented("compileGraph with a bool");
}
Executable compileGraph(const Graph &, ArrayRef<program::Program>, const Preallocations &, bool,
                        const OptionFlags &, ProgressFunc, const DebugContext &) {
  notImplemented("compileGraph with Preallocations");
}

void Engine::insertSimulatedError(ErrorCode, const ErrorLocation &) {
  notImplemented("Engine::insertSimulatedError");
}
void Engine::eraseSimulatedError(const ErrorLocation &) {
  notImplemented("Engine::eraseSimulatedError");
}
void Engine::clearSimulatedErrors() { notImplemented("Engine::clearSimulatedErrors"); }
std::vector<ErrorLocation> Engine::getSimulatedErrorLocations(unsigned, unsigned) const {
  notImplemented("Engine::getSimulatedErrorLocations");
}
std::vector<ErrorLocation> Engine::getSimulatedErrorLocations(StringRef, unsigned) const {
  notImplemented("Engine::getSimulatedErrorLocations");
}
void Engine::readTensor(StringRef, QuarterMetadata &, void *, void *) {
  notImplemented("Engine::readTensor of quarter");
}
void Engine::writeTensor(StringRef, const QuarterMetadata &, const void *, const void *) {
  notImplemented("Engine::writeTensor of quarter");
}
void Engine::connectHostFunction(StringRef, unsigned, HostCallbackHandle) {
  notImplemented("Engine::connectHostFunction");
}

void printGraphSummary(std::ostream &, const std::string &, const OptionFlags &) {
  notImplemented("printGraphSummary");
}
void printProfileSummary(std::ostream &, const std::string &, const OptionFlags &) {
  notImplemented("printProfileSummary");
}

VertexRef Graph::addExternalExchangeVertex(ComputeSet, StringRef, unsigned, bool, bool) {
  notImplemented("Graph::addExternalExchangeVertex");
}
Tensor Graph::addExternalVariable(const Type &, ArrayRef<std::size_t>, StringRef,
                                  const DebugContext &) {
  notImplemented("Graph::addExternalVariable");
}
void Graph::setInitialValue(const Tensor &, const std::map<unsigned, unsigned> &) {
  notImplemented("Graph::setInitialValue with a map");
}
FunctionBuffer Graph::addFunctionBuffer(const Function &, FunctionBufferMappingType) {
  notImplemented("Graph::addFunctionBuffer");
}
HostFunction Graph::addHostFunction(StringRef, ArrayRef<HostFunctionArgument>,
                                    ArrayRef<HostFunctionArgument>) {
  notImplemented("Graph::addHostFunction");
}

namespace program {
Loop::Loop(const Program &, const DebugContext &) { notImplemented("program::Loop"); }
Copy::Copy(const FunctionBuffer &, const Function &, const DebugContext &) {
  notImplemented("program::Copy of a FunctionBuffer");
}
Call::Call(HostFunction, ArrayRef<Tensor>, ArrayRef<Tensor>, const DebugContext &) {
  notImplemented("program::Call of a HostFunction");
}
} // namespace program

unsigned Target::getNumTilesPerXBContext() const {
  notImplemented("Target::getNumTilesPerXBContext");
}
unsigned Target::getNumContextsPerXB() const { notImplemented("Target::getNumContextsPerXB"); }
unsigned Target::getTileHostExchangeXB(unsigned) const {
  notImplemented("Target::getTileHostExchangeXB");
}
unsigned Target::getTileHostExchangeContext(unsigned) const {
  notImplemented("Target::getTileHostExchangeContext");
}
unsigned Target::getTileHostExchangeContextPosition(unsigned) const {
  notImplemented("Target::getTileHostExchangeContextPosition");
}
unsigned Target::getFpIctlRegIndex() const { notImplemented("Target::getFpIctlRegIndex"); }
unsigned Target::getDbgDataRegIndex() const { notImplemented("Target::getDbgDataRegIndex"); }

void DebugInfo::initializeStreamer(const std::string &, const DebugSerializationFormat &) {
  notImplemented("DebugInfo::initializeStreamer");
}
void DebugInfo::closeStreamer() { notImplemented("DebugInfo::closeStreamer"); }

Tensor createConstantMetadataTensor(Graph &, QuarterMetadata::Format, int, const DebugContext &) {
  notImplemented("createConstantMetadataTensor");
}
Tensor createVariableMetadataTensor(Graph &, QuarterMetadata::Format, int, const DebugContext &) {
  notImplemented("createVariableMetadataTensor");
}
Tensor createVariableMetadataTensor(Graph &, QuarterMetadata::Format, const Tensor &,
                                    program::Sequence &, const DebugContext &) {
  notImplemented("createVariableMetadataTensor with a scale on the device");
}

std::string getLanguageOption(CodeletFileType) { notImplemented("getLanguageOption"); }

} // namespace poplar
