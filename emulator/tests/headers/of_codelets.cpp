// SPDX-License-Identifier: Apache-2.0
// What codelets get from headers alone: built as popc builds them, without the library. What a
// loader writes into fields, this writes. It prints a line of what each gave.
#include <poplar/QuarterFloat.hpp> // as popc includes it: first

#include "builtins.hpp"
#include "registration.hpp"

#include <ipu_builtins.h>
#include <ipudef.h>
#include <poplar/Vertex.hpp>

#include "line.hpp"

#include <cstring>
#include <limits>

using namespace poplar;

// A field as a loader fills it: a pointer, and for vectors a count.
struct Stored {
  const void *at;
  unsigned count;
};
template <class Field> static Field loaded(const void *at, unsigned count = 0) {
  Field f;
  const Stored stored = {at, count};
  static_assert(sizeof f == sizeof stored || sizeof f == sizeof stored.at, "as a loader has it");
  std::memcpy(static_cast<void *>(&f), &stored, sizeof f);
  return f;
}

static void fields() {
  float x[4] = {1, 2, 3, 4};
  const auto in = loaded<Input<float>>(x);
  const auto out = loaded<Output<float>>(x + 1);
  const auto both = loaded<InOut<float>>(x + 2);
  *out = 20, *both += 30;
  line("scalars", *in, in + 1, static_cast<float &>(out), *both, x[1], x[2]);
  const unsigned wide[2] = {5, 6};
  line("size_t", *loaded<Input<unsigned long>>(wide), loaded<Input<unsigned long>>(wide + 1) + 0);
  const auto v = loaded<Input<Vector<float>>>(x, 3);
  float sum = 0;
  for (const float e : v)
    sum += e;
  line("vector", v.size(), v.empty(), sum, v[2], v->size(), (*v).data() == x,
       v.getMetadata() == nullptr);
  const auto none = loaded<Output<Vector<float>>>(x, 0);
  line("empty", none.size(), none.empty(), none.begin() == none.end(), (*none).size());
  const auto one = loaded<InOut<Vector<float, VectorLayout::ONE_PTR>>>(x + 3);
  line("one pointer", one[0], *one.data(), (*one)[0], one->data() == x + 3);
  const Stored rows[2] = {{x, 1}, {x + 1, 3}};
  const auto list = loaded<Input<VectorList<float>>>(rows, 2);
  line("list", list.size(), list[0].size(), list[1].size(), list[1][2], list->size(),
       (*list)[1][0]);
  const auto outs = loaded<Output<VectorList<float>>>(rows, 2);
  outs[1][1] = 7;
  line("written", outs.size(), x[2], vectorHasSize(VectorLayout::SHORT_SPAN),
       vectorHasSize(VectorLayout::COMPACT_PTR), loaded<InOut<VectorList<float>>>(rows, 2)[0][0]);
  line("kinds", MultiVertex::numWorkers(),
       std::is_base_of<SupervisorVertex, SupervisorVertexIf<true>>::value,
       std::is_base_of<SupervisorVertex, SupervisorVertexIf<false>>::value);
}

static void vectors() {
  const float4 a = {1, 2, 3, 4};
  float2 two = {5, -6};
  const float4 b = 2.f * a - 1.f;
  line("by element", b[0], b.y, b.z, b[3], (1.f - a).y);
  two += 1.f;
  two /= float2{2, 5};
  line("assigned", two.x, two.y, (-two).x);
  const int4 less = a < 3.f, same = a == b;
  line("compared", less[0], less[1], less[2], less[3], same.x, same.y, (3.f >= a).w, (a != b).w);
  const half2 h = {half(2048.f), half(0.1f)};
  line("halves", float((h + half(1.f))[0]), float((h * h)[1]));
  line("integers", (int2{7, 9} % 4).y, (uint2{1, 2} << uint2{3, 4}).y, (~int2{0, 5}).y,
       (int2{6, 1} & 3).x, (int2{6, 1} ^ int2{3, 3}).x, sizeof(longlong4), alignof(half4));
  const int4 whole = __builtin_convertvector(a * 1.5f, int4);
  line("converted", whole.x, whole.w);
}

static codelet_abi::Worker *worker() {
  static std::uint64_t generator[2] = {1ull << 32, 3ull << 32 | 2};
  static codelet_abi::Worker w = {11, 4, generator,
                                  []() -> std::uint64_t { return 5ull << 32 | 6; }};
  return &w;
}
codelet_abi::WorkerFunction poplar_codelet_worker = worker;

static void builtins() {
  line("worker", __builtin_ipu_get_tile_id(), __builtin_ipu_get_worker_id(),
       __builtin_ipu_get_scount_l(), __builtin_ipu_get_scount_u());
  const unsigned first = __builtin_ipu_urand32();
  line("random", first, __builtin_ipu_urand32()); // as an IPU's program printed it: 2 565199488
  float sum = 0, squares = 0, least = 0, greatest = 0;
  for (int i = 0; i < 1000; ++i) {
    const float2 normal = __builtin_ipu_f32v2grand();
    const float even = __builtin_ipu_urand_f32();
    sum += normal.x + normal.y;
    squares += normal.x * normal.x + normal.y * normal.y;
    least = std::fmin(least, even), greatest = std::fmax(greatest, even);
  }
  line("normal", std::fabs(sum / 2000) < 0.1f, std::fabs(squares / 2000 - 1) < 0.1f);
  line("even", least < -0.49f && least >= -0.5f, greatest > 0.49f && greatest <= 0.5f);
  const float2 p = {1, -2}, q = {0, 3};
  const float2 more = __builtin_ipu_max(p, q), fewer = __builtin_ipu_min(p, q);
  line("bounds", more.x, more.y, fewer.x, fewer.y, __builtin_ipu_max(1.f, 2.f),
       __builtin_ipu_min(1.f, 2.f));
  line("functions", __builtin_ipu_exp2(3.f), __builtin_ipu_log2(8.f), __builtin_ipu_ln(1.f),
       __builtin_ipu_exp(0.f), __builtin_ipu_tanh(0.f), __builtin_ipu_sigm(0.f),
       __builtin_ipu_sigm(-100.f), __builtin_ipu_isnan(NAN), __builtin_ipu_isinf(INFINITY),
       __builtin_ipu_isfinite(INFINITY));
}

static void numbers() {
  half h = half(1.f);
  h += 2.f, h *= 4.f, h -= 2.f, h /= 5.f;
  const float in = 3;
  half edge;
  edge = loaded<Input<float>>(&in);
  line("half", float(h), float(edge), float(half(1e9f)), float(half(-65519.f)),
       half(NAN).bits() == 0x7e00, half::fromBits(1).bits(), half(2049.f).bits());
  using Limits = std::numeric_limits<half>;
  line("limits", float(Limits::max()), float(Limits::lowest()), Limits::digits,
       float(Limits::min()) == 0x1p-14f, float(Limits::epsilon()) == 0x1p-10f,
       float(Limits::denorm_min()) == 0x1p-24f, float(Limits::infinity()), Limits::is_integer);
  const quarter_metadata up = unpackMetadata(0x81), down = unpackMetadata(0x3f);
  line("quarter", up.format == QuarterMetadata::Format::F143, up.scale, down.scale,
       down.format == QuarterMetadata::Format::F152, toFloat(toQuarter(7.25f, up), up),
       toFloat(toQuarter(-1e9f, down), down), float(toHalf(toQuarter(half(3.f), up), up)),
       int(toQuarter(NAN, up).bits()));
}

struct Everything : MultiVertex {
  Input<float> scalar;
  Output<Vector<half, VectorLayout::ONE_PTR, 8>> vector;
  Vector<InOut<Vector<unsigned short>>> lists;
  Vector<int> state;
  Input<VectorList<bool>> rows;
  unsigned char plain;
  bool compute(unsigned w) { return w == 3; }
  void without(unsigned) {}
};

template <class T> static void described(const char *name, T Everything::*member) {
  const codelet_abi::Field f = codelet_registration::describe(name, member);
  line(f.name, int(f.direction), int(f.nesting), int(f.element), int(f.layout), int(f.outerLayout),
       f.minAlign, f.outerMinAlign);
}

static void registration() {
  using namespace codelet_registration;
  described("scalar", &Everything::scalar);
  described("vector of", &Everything::vector);
  described("lists", &Everything::lists);
  described("state", &Everything::state);
  described("rows", &Everything::rows);
  described("plain", &Everything::plain);
  Everything v{};
  line("offset", offsetIn<Everything>(&Everything::plain) == offsetof(Everything, plain));
  line("kind", int(kindOf<Everything>()), int(kindOf<SupervisorVertex>()), int(kindOf<Vertex>()));
  line("called", call(v, &Everything::compute, 3), call(v, &Everything::compute, 2),
       call(v, &Everything::without, 2), codelet_abi::tablesSymbol, codelet_abi::workerSymbol,
       codelet_abi::overflowSymbol);
}

int main() {
  std::cout << std::boolalpha;
  fields();
  vectors();
  builtins();
  numbers();
  registration();
}
