// SPDX-License-Identifier: Apache-2.0
// Loading codelet objects, and compiling sources to them with popc.
#include <poplar/Graph.hpp>

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "core.hpp"
#include "floating_point.hpp"
#include "random.hpp"

extern char **environ;

namespace poplar {

using core::Access;
using core::CodeletLibrary;
using core::GraphImpl;

namespace core {
CodeletLibrary::~CodeletLibrary() {
  if (handle)
    dlclose(handle);
}
} // namespace core

namespace {

bool exists(const std::string &path) {
  struct stat s;
  return stat(path.c_str(), &s) == 0;
}

bool endsWith(const std::string &s, const std::string &end) {
  return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

std::string absolutePath(const std::string &path) {
  char *p = realpath(path.c_str(), nullptr);
  std::string r = p ? p : path;
  std::free(p);
  return r;
}

// A directory of our own under TMPDIR, removed with what is in it.
class TempDir {
public:
  TempDir() {
    const char *base = std::getenv("TMPDIR");
    path_ = std::string(base && *base ? base : "/tmp") + "/popc-XXXXXX";
    if (!mkdtemp(&path_[0]))
      throw errors::no_codelet_file("addCodelets: cannot make a temporary directory " + path_ +
                                    ": " + std::strerror(errno));
  }
  ~TempDir() {
    for (const std::string &f : files_)
      unlink(f.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string &name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

private:
  std::string path_;
  std::vector<std::string> files_;
};

// The popc to use: $SPARQ_POPC, then the one of the toolkit that this library is part of, then the
// one this library was built with, then PATH.
std::string findPopc() {
  const char *env = std::getenv("SPARQ_POPC");
  if (env && *env)
    return env;
  Dl_info here;
  if (dladdr(reinterpret_cast<const void *>(&exists), &here) && here.dli_fname) {
    const std::string library = absolutePath(here.dli_fname);
    const std::string popc = library.substr(0, library.rfind('/') + 1) + "../bin/popc";
    if (endsWith(library.substr(0, library.rfind('/') + 1), "/lib/") && exists(popc))
      return popc;
  }
#ifdef SPARQ_POPC_PATH
  if (exists(SPARQ_POPC_PATH))
    return SPARQ_POPC_PATH;
#endif
  return "popc";
}

std::string readAll(const std::string &path) {
  std::ifstream f(path);
  std::ostringstream s;
  s << f.rdbuf();
  return s.str();
}

std::vector<std::string> splitWords(const std::string &s) {
  std::istringstream is(s);
  std::vector<std::string> r;
  for (std::string w; is >> w;)
    r.push_back(w);
  return r;
}

// Runs popc; its output goes to `log`. Returns the exit status, or -1 when it could not be started.
int runPopc(const std::vector<std::string> &args, const std::string &log) {
  std::vector<std::string> all;
  const std::string popc = findPopc();
  if (endsWith(popc, ".py")) {
#ifdef SPARQ_PYTHON
    const char *python = std::getenv("SPARQ_PYTHON");
    all.push_back(python && *python ? python : (exists(SPARQ_PYTHON) ? SPARQ_PYTHON : "python3"));
#else
    all.push_back("python3");
#endif
  }
  all.push_back(popc);
  all.insert(all.end(), args.begin(), args.end());
  std::vector<char *> argv;
  for (std::string &a : all)
    argv.push_back(&a[0]);
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error)
    return -1;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void loadObject(GraphImpl &g, const std::string &path, const std::string &shownPath) {
  // Loading runs a library's constructors, so what it exports is looked up in the file before.
  const std::string bytes = readAll(path);
  const std::string name = std::string(codelet_abi::tablesSymbol) + '\0';
  if (bytes.compare(0, 4, "\177ELF") == 0 && bytes.find(name) == std::string::npos)
    throw errors::bad_object(shownPath, "it is not a codelet object made by popc");
  void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw errors::bad_object(shownPath, dlerror());
  auto library = std::make_shared<CodeletLibrary>(handle, shownPath);
  if (Access::info(g.target).type == TargetType::IPU) // its executables may be serialised
    library->object = bytes;
  const auto tables =
      reinterpret_cast<codelet_abi::TablesFunction>(dlsym(handle, codelet_abi::tablesSymbol));
  if (!tables)
    throw errors::bad_object(shownPath, "it is not a codelet object made by popc");
  unsigned n = 0;
  const codelet_abi::Table *const *t = tables(&n);
  for (unsigned i = 0; i < n; ++i) {
    if (t[i]->version != codelet_abi::version)
      throw errors::bad_object(shownPath, "its format must be " +
                                              std::to_string(codelet_abi::version) + ", got " +
                                              std::to_string(t[i]->version) + "; run popc again");
    for (unsigned k = 0; k < t[i]->numVertices; ++k) {
      const codelet_abi::Vertex &v = t[i]->vertices[k];
      if (g.codelets.count(v.name))
        throw errors::vertex_defined_twice(shownPath, std::string("vertex type ") + v.name +
                                                          " is defined already");
    }
  }
  auto *worker =
      reinterpret_cast<codelet_abi::WorkerFunction *>(dlsym(handle, codelet_abi::workerSymbol));
  if (worker)
    *worker = core::currentWorker;
  auto *overflow =
      reinterpret_cast<codelet_abi::OverflowFunction *>(dlsym(handle, codelet_abi::overflowSymbol));
  if (overflow)
    *overflow = core::overflowedHalf;
  for (unsigned i = 0; i < n; ++i)
    for (unsigned k = 0; k < t[i]->numVertices; ++k) {
      g.codelets[t[i]->vertices[k].name] = &t[i]->vertices[k];
      if (worker)
        g.askWorker.insert(&t[i]->vertices[k]);
      if (!overflow)
        g.hideEvents.insert(&t[i]->vertices[k]);
    }
  g.libraries.push_back(std::move(library));
}

void compileAndLoad(GraphImpl &g, const std::vector<std::string> &sources, const std::string &flags,
                    std::ostream *output) {
  TempDir dir;
  const std::string gp = dir.file("codelets.gp"), log = dir.file("log");
  std::vector<std::string> args = splitWords(flags);
  args.insert(args.end(), sources.begin(), sources.end());
  args.push_back("-o");
  args.push_back(gp);
  const int status = runPopc(args, log);
  const std::string text = readAll(log);
  if (output)
    *output << text;
  if (status == -1 || status == 127)
    throw errors::codelets_do_not_compile(
        "addCodelets: popc must be found through $SPARQ_POPC or PATH, got '" + findPopc() + "'",
        text);
  if (status != 0)
    throw errors::codelets_do_not_compile("addCodelets: popc failed (exit " +
                                              std::to_string(status) + ") on " + sources[0] +
                                              ":\n" + text,
                                          text);
  loadObject(g, gp, sources[0]); // stays mapped after the file is gone
}

} // namespace

void core::loadObjectOfBytes(GraphImpl &g, const std::string &bytes, const std::string &shownPath) {
  TempDir dir;
  const std::string path = dir.file("codelets.gp");
  std::ofstream(path, std::ios::binary) << bytes;
  loadObject(g, path, shownPath); // stays mapped after the file is gone
  g.libraries.back()->object = bytes;
}

bool Graph::addCodelets(StringRef src, CodeletFileType type, StringRef compileFlags,
                        std::ostream &compileOutput, StringRef) {
  const std::string path = src.str();
  if (!exists(path))
    throw errors::no_codelet_file("addCodelets: file must exist, got '" + path + "'");
  if (!impl->codeletFiles.insert(absolutePath(path)).second)
    return false;
  try {
    if (type == CodeletFileType::Object || (type == CodeletFileType::Auto && endsWith(path, ".gp")))
      loadObject(*impl, absolutePath(path), path);
    else if (type == CodeletFileType::AsmSource || type == CodeletFileType::PreprocessedAsmSource ||
             type == CodeletFileType::IrSource || endsWith(path, ".S") || endsWith(path, ".s"))
      throw errors::no_codelet_file(
          "addCodelets: file must be C++ or a .gp object here, got assembly '" + path + "'");
    else
      compileAndLoad(*impl, {path}, compileFlags.str(), &compileOutput);
  } catch (...) {
    impl->codeletFiles.erase(absolutePath(path));
    throw;
  }
  return true;
}

bool Graph::addCodelets(StringRef src, CodeletFileType type, StringRef compileFlags,
                        StringRef targetName) {
  std::ostringstream output;
  const bool added = addCodelets(src, type, compileFlags, output, targetName);
  if (!output.str().empty())
    std::cerr << output.str();
  return added;
}

bool Graph::addCodelets(ArrayRef<std::string> xs, StringRef compileFlags, StringRef targetName) {
  bool added = false;
  for (const std::string &x : xs)
    added |= addCodelets(x, CodeletFileType::Auto, compileFlags, targetName);
  return added;
}

void Graph::addCodelets(std::stringstream &stream, StringRef compileFlags, CodeletFileType,
                        StringRef) {
  TempDir dir;
  const std::string path = dir.file("codelets.cpp");
  {
    std::ofstream f(path);
    f << stream.str();
  }
  compileAndLoad(*impl, {path}, compileFlags.str(), nullptr);
}

bool Graph::hasCodelet(StringRef codeletName) {
  return impl->codelets.count(codeletName.str()) != 0;
}

} // namespace poplar
