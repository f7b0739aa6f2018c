// SPDX-License-Identifier: Apache-2.0
// What the headers themselves define: built without the library, it prints a line of what each
// gave.
#include <poplar/ArrayRef.hpp>
#include <poplar/AvailableVTypes.h>
#include <poplar/CSRFunctions.hpp>
#include <poplar/DataStream.hpp>
#include <poplar/DebugContext.hpp>
#include <poplar/GlobalExchangeConstraints.hpp>
#include <poplar/GraphElements.hpp>
#include <poplar/HostFunctionCallback.hpp>
#include <poplar/Interval.hpp>
#include <poplar/OptionFlags.hpp>
#include <poplar/PerfEstimateFunc.hpp>
#include <poplar/PrintTensor.hpp>
#include <poplar/Quarter.hpp>
#include <poplar/StackSizeDefs.hpp>
#include <poplar/StreamCallback.hpp>
#include <poplar/StringRef.hpp>
#include <poplar/TensorRearranger.hpp>
#include <poplar/TileConstants.hpp>
#include <poplar/Type.hpp>
#include <poplar/TypeTraits.hpp>
#include <poplar/VariableRef.hpp>
#include <poplar/exceptions.hpp>
#include <poplar/replication_factor.hpp>

#include "line.hpp"

#include <sstream>
#include <stdexcept>
#include <unordered_set>

using namespace poplar;

static void views() {
  const std::vector<int> v = {4, 5, 6};
  const ArrayRef<int> whole(v), none, two(v.data(), 2);
  const int plain[] = {1, 2};
  const std::array<int, 3> fixed = {{7, 8, 9}};
  line("arrays", ArrayRef<int>(plain).size(), ArrayRef<int>(plain).back(),
       ArrayRef<int>(fixed).size(), ArrayRef<int>(fixed).back());
  line("array", whole.size(), whole.front(), whole.back(), whole[1], none.empty(), whole.empty(),
       two.end() - two.begin(), ArrayRef<int>{1, 2}.cloneAsVector().size());
  const char *nothing = nullptr;
  const StringRef a("ab"), b(std::string("ac")), first("abc", 2);
  line("string", StringRef(nothing).size(), a == first, a == b, a != b, a < b, b < a, a + b,
       StringRef("ab") == StringRef("abc"), a[1], StringRef().empty());
}

static void ranges() {
  const Interval i(2, 5), later(2, 6), above(3, 4);
  line("interval", i, i.size(), i.lower(), i.upper(), i == Interval(2, 5), i != later, i < later,
       above < later, later < i, Interval().size());
  const VariableRef x(7), y(8);
  const VariableInterval of(x, i);
  line("variable", x.id(), x == y, x != y, x < y, of < VariableInterval(x, later),
       VariableInterval(y, i) < of, of == VariableInterval(y, i), of != VariableInterval(x, later),
       std::unordered_set<VariableRef>{x, y, x}.size());
  line("rearranger", TensorRearranger().valid());
}

static void types() {
  const Type one(1, nullptr), two(2, nullptr);
  line("type", one == Type(1, nullptr), one == two, one != two, one < two, two < one, two.hash());
  const TypeTraits f = TypeTraits::make<float>(), s = TypeTraits::make<unsigned short>(),
                   t = TypeTraits::make<bool>(), none = TypeTraits::make<std::string>();
  line("float", f.size, f.align, f.isSigned, f.isFloat, f.isBool, f.isIntegral);
  line("unsigned short", s.size, s.isSigned, s.isFloat, s.isBool, s.isIntegral);
  line("bool", t.size, t.isBool, t.isIntegral, none.isSimpleType(), f.isSimpleType(),
       TypeTraits::requiresMetadata<float>());
  line("quarter", QuarterMetadata() == QuarterMetadata(), QuarterMetadata() != QuarterMetadata(),
       QuarterMetadata().getFormat() == QuarterMetadata::Format::F143,
       QuarterMetadata().getScale());
}

static unsigned lineOf(SourceLocation where = SourceLocation::Current()) {
  return where.getLineNumber();
}

static void names() {
  const DebugContext parent("a"), child(parent, "b"), unnamed(parent, "");
  const DebugNameAndId id("c", 0, "a"), below(id, "d");
  const DebugInfo info(child, "api");
  line("path", child, unnamed.getPathName(), DebugContext(DebugNameAndId(), "x"), id, below,
       DebugContext(id, "e"), DebugContext(info, "f"), DebugNameAndId(info, "g"),
       DebugNameAndId("alone"), info.getPathName());
  line("place", lineOf() == __LINE__, SourceLocation().isValid(),
       SourceLocation("f", "x.cpp", 3).isValid(), SourceLocation("f", "x.cpp", 3).getFileName());
}

static void identifiers() {
  line("ids", VertexRef().getId() == ~0u, ComputeSet(3).getId(), ComputeSet().getId() == ~0u,
       Function(4).getId(), FunctionBuffer(5).getId(), HostFunction(6).getId(),
       VertexRef() == VertexRef(), VertexRef() < VertexRef(), FieldRef().isIndexed());
  line("streams", DataStream() == DataStream(), DataStream() != DataStream(),
       RemoteBuffer() == RemoteBuffer(), RemoteBuffer() != RemoteBuffer());
  line("replicas", replication_factor(3) + 0);
  const GlobalExchangeConstraint constraint(2.5, {GlobalExchangeFlow(1, 2)});
  line("flow", constraint.bandwidth, constraint.flows.size(), constraint.flows[0].src,
       constraint.flows[0].dst);
}

static void options() {
  OptionFlags some = {{"b", "1"}, {"a", "2"}, {"b", "3"}}, other;
  other.set("a", "2");
  const bool differ = some != other;
  other.set({{"b", "3"}});
  line("options", some.size(), some.at("b"), differ, some == other, some.begin()->first,
       some.find("c") == some.end());
  try {
    some.at("c");
  } catch (const std::out_of_range &) {
    line("no option", "out_of_range");
  }
  some.clear();
  line("cleared", some.size());
  const FloatingPointBehaviour all, given(true, false, false, true, false);
  line("behaviour", all.inv, all.div0, all.oflo, all.esr, all.nanoo, given.inv, given.div0,
       given.oflo, given.esr, given.nanoo);
  const PrintTensorFmt usual, plain = PrintTensorFmt::disableFormatting(),
                              other_(1, 2, 3, 4, PrintTensorFmt::FloatFormat::Fixed, ',', '(', ')');
  line("print", usual.summariseThreshold, usual.edgeItems, usual.maxLineWidth, usual.digits,
       plain.summariseThreshold == ~0u, plain.digits,
       plain.floatFormat == PrintTensorFmt::FloatFormat::None, other_.summariseThreshold,
       other_.edgeItems, other_.maxLineWidth, other_.digits, other_.separator, other_.openBracket,
       other_.closeBracket);
  const VertexPerfEstimate estimate(5), both(6, 7);
  line("estimate", estimate.cycles, estimate.flops, both.cycles, both.flops);
}

// A host function that says when it goes.
struct Called : HostCallback {
  unsigned &gone;
  explicit Called(unsigned &gone) : gone(gone) {}
  ~Called() override { ++gone; }
  void operator()(ArrayRef<const void *>, ArrayRef<void *>) override {}
};

static void callbacks() {
  int asked = 0, value = 0;
  const StreamCallbackHandle f([&](void *p) { ++asked, *static_cast<int *>(p) = 9; });
  const bool gives = f->prefetch(&value) != StreamCallback::Result::NotAvailable;
  f->complete();
  f->invalidatePrefetched();
  const int before = asked;
  (*f).fetch(&value);
  line("callback", gives, before, asked, value, f.get() == f.operator->());
  unsigned gone = 0, kept = 0;
  {
    const HostCallbackHandle handle(std::unique_ptr<Called>(new Called(gone)));
    kept = 1 - gone;
  }
  line("host function", kept, gone);
}

static void errors() {
  line("unknown_field", unknown_field("V", "f").what());
  line("index_error", index_error("slice", 4).what());
  line("no_size_specified", no_size_specified("f", "V").what());
  line("load", graph_object_load_error("a.gp", "gone").what());
  line("symbol", symbol_error("s", 3).what());
  const link_error link("text", "output");
  line("link", link.what(), link.output);
  line("action", recoverable_runtime_error(RecoveryAction::LINK_RESET, "x").getRecoveryAction() ==
                     RecoveryAction::LINK_RESET);
  line("base", std::is_base_of<runtime_error, application_runtime_error>::value,
       std::is_base_of<system_runtime_error, recoverable_runtime_error>::value,
       std::is_base_of<system_runtime_error, application_runtime_error>::value,
       profiling_disabled().what());
}

static void constants() {
  line("contexts", CTXT_WORKERS, CTXT_SUPERVISOR, CTXT_TOTAL, NUM_STRIDE_BITS);
  line("layouts", VECTOR_AVAIL_SPAN, VECTOR_AVAIL_SHORT_SPAN, VECTOR_AVAIL_ONE_PTR,
       VECTOR_AVAIL_SCALED_PTR32, VECTOR_AVAIL_SCALED_PTR64, VECTOR_AVAIL_SCALED_PTR128,
       VECTORLIST_AVAIL_DELTAN, VECTORLIST_AVAIL_DELTANELEMENTS);
  DEF_STACK_USAGE(16, main);
}

int main() {
  views();
  ranges();
  types();
  names();
  identifiers();
  options();
  callbacks();
  errors();
  constants();
}
