// SPDX-License-Identifier: Apache-2.0
// Options: JSON reading, and which an engine knows.
#include <poplar/EngineOptions.hpp>
#include <poplar/OptionFlags.hpp>
#include <poplar/exceptions.hpp>

#include <cctype>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>

#include "compiler.hpp"
#include "floating_point.hpp"

namespace poplar {

std::ostream &operator<<(std::ostream &os, const OptionFlags &flags) {
  os << "{";
  const char *separator = "";
  for (const auto &f : flags) {
    os << separator << "\"" << f.first << "\":\"" << f.second << "\"";
    separator = ",";
  }
  return os << "}";
}

namespace {

// A flat JSON object: strings, numbers, booleans.
class FlatJSON {
public:
  FlatJSON(const std::string &s, const std::string &what) : s_(s), what_(what) {}
  void read(OptionFlags &flags) {
    expect('{');
    if (peek() == '}') {
      ++at_;
    } else {
      for (;;) {
        const std::string key = string();
        expect(':');
        flags.set(key, peek() == '"' ? string() : word());
        if (peek() == ',') {
          ++at_;
          continue;
        }
        expect('}');
        break;
      }
    }
    if (peek() != '\0')
      fail("the end");
  }

private:
  char peek() {
    while (at_ < s_.size() && std::isspace(static_cast<unsigned char>(s_[at_])))
      ++at_;
    return at_ < s_.size() ? s_[at_] : '\0';
  }
  [[noreturn]] void fail(const std::string &wanted) {
    throw errors::json_syntax(what_ + ": expected " + wanted + " at character " +
                              std::to_string(at_) + ", got '" + s_.substr(at_, 16) + "'");
  }
  void expect(char c) {
    if (peek() != c)
      fail(std::string("'") + c + "'");
    ++at_;
  }
  std::string string() {
    expect('"');
    std::string r;
    while (at_ < s_.size() && s_[at_] != '"') {
      if (s_[at_] == '\\' && at_ + 1 < s_.size()) {
        ++at_;
        const char c = s_[at_];
        r += c == 'n' ? '\n' : c == 't' ? '\t' : c;
        if (c == 'u')
          fail("a plain character");
      } else {
        r += s_[at_];
      }
      ++at_;
    }
    expect('"');
    return r;
  }
  std::string word() {
    peek();
    std::string r;
    while (at_ < s_.size() && (std::isalnum(static_cast<unsigned char>(s_[at_])) ||
                               s_[at_] == '-' || s_[at_] == '+' || s_[at_] == '.'))
      r += s_[at_++];
    if (r.empty())
      fail("a string, number or boolean");
    return r;
  }
  std::string s_, what_;
  std::size_t at_ = 0;
};

} // namespace

static void readFlat(const std::string &text, const std::string &what, OptionFlags &flags) {
  OptionFlags read;
  FlatJSON(text, what).read(read);
  for (const auto &f : read)
    flags.set(f.first, f.second);
}

void readJSON(StringRef string, OptionFlags &flags) { readFlat(string.str(), "readJSON", flags); }

void readJSON(std::istream &stream, OptionFlags &flags) {
  readJSON(std::string(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()),
           flags);
}

void readJSONFromEnv(StringRef name, OptionFlags &flags) {
  const char *env = std::getenv(name.str().c_str());
  if (env)
    readFlat(env, name.str(), flags);
}

EngineOptions::EngineOptions(const OptionFlags &flags, const Target &target,
                             unsigned replicationFactor) {
  OptionFlags all = flags;
  readJSONFromEnv("POPLAR_ENGINE_OPTIONS", all);
  std::ostringstream text;
  text << all << ' ' << target.hash() << ' ' << replicationFactor;
  hash_ = std::hash<std::string>()(text.str());
}

namespace core {

// Options that are on or off.
static constexpr const char *booleans[] = {"target.extendedMemory",
                                           "target.syncReplicasIndependently",
                                           "exchange.enablePrefetch",
                                           "debug.trace",
                                           "debug.runtimeVerify",
                                           "debug.retainDebugInformation",
                                           "debug.outputAllSymbols",
                                           "opt.enableInlining",
                                           "opt.useAutoloader",
                                           "streamCallbacks.numaAware",
                                           "debug.instrument",
                                           "debug.instrumentCompute",
                                           "debug.instrumentExternalExchange",
                                           "debug.instrumentControlFlow",
                                           "debug.allowOutOfMemory",
                                           "autoReport.all",
                                           "autoReport.outputExecutionProfile",
                                           "autoReport.outputGraphProfile",
                                           "autoReport.outputDebugInfo",
                                           "autoReport.streamAtEachRun"};

// Files that are not written here.
static bool wantsFile(const std::string &option) {
  return (option.rfind("autoReport.", 0) == 0 && option != traceOption) ||
         option == "debug.loweredVarDumpFile" || option == "target.saveArchive";
}

void warnOnce(const std::string &text) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(text).second)
    std::cerr << "emulator: warning: " << text << "\n";
}

void checkEngineOptions(const OptionFlags &options) {
  static const std::set<std::string> known = {"target.extendedMemory",
                                              "target.hostSyncTimeout",
                                              "target.syncMethod",
                                              "target.syncReplicasIndependently",
                                              "target.deterministicWorkers",
                                              "target.saveArchive",
                                              "target.workerStackSizeInBytes",
                                              "target.supervisorStackSizeInBytes",
                                              "exchange.streamBufferOverlap",
                                              "exchange.enablePrefetch",
                                              "debug.instrument",
                                              "debug.instrumentCompute",
                                              "debug.instrumentExternalExchange",
                                              "debug.instrumentControlFlow",
                                              "debug.computeInstrumentationLevel",
                                              "debug.retainDebugInformation",
                                              "debug.allowOutOfMemory",
                                              "debug.runtimeVerify",
                                              "debug.floatPointOpException",
                                              "debug.nanOverflowMode",
                                              "debug.loweredVarDumpFile",
                                              "debug.trace",
                                              "debug.outputAllSymbols",
                                              "debug.branchRecordTile",
                                              "opt.internalExchangeOptimisationTarget",
                                              "opt.maxComputeSetsPerLoweredCopy",
                                              "opt.enableInlining",
                                              "opt.useAutoloader",
                                              "prng.seed",
                                              "prng.enableStochasticRounding",
                                              "autoReport.all",
                                              "autoReport.directory",
                                              "autoReport.outputExecutionProfile",
                                              "autoReport.outputGraphProfile",
                                              "autoReport.outputDebugInfo",
                                              "autoReport.executionProfileProgramRunCount",
                                              "autoReport.streamAtEachRun",
                                              "streamCallbacks.multiThreadMode",
                                              "streamCallbacks.numWorkerThreads",
                                              "streamCallbacks.numaAware"};
  // Programs carry options of other versions of the SDK. What none knows here changes nothing here.
  for (const auto &o : options)
    if (known.count(o.first) == 0)
      warnOnce("engine option '" + o.first + "' = '" + o.second +
               "' is not known here and has no effect");
    else if (wantsFile(o.first) && o.second != "false")
      warnOnce("engine option '" + o.first + "' = '" + o.second +
               "' has no effect here: the only file is the trace of " + traceOption +
               ". Engine::printProfileSummary prints a profile");
  for (const char *name : booleans)
    if (const auto o = options.find(name);
        o != options.end() && o->second != "true" && o->second != "false")
      throw errors::bad_engine_option(std::string("engine option ") + name +
                                      " must be true or false, got '" + o->second + "'");
  checkFloatingPointOptions(options);
  const auto rounding = options.find("prng.enableStochasticRounding");
  if (rounding != options.end() && rounding->second != "false")
    throw errors::bad_engine_option(
        "engine option prng.enableStochasticRounding must be false here, got '" + rounding->second +
        "'");
}

} // namespace core
} // namespace poplar
