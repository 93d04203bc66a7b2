#include "lines.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace verbena::budget::lines {

#if defined(__x86_64__)

namespace {

constexpr std::uintptr_t kLineBytes = 64;
constexpr std::uintptr_t kPageBytes = 4096;
constexpr std::size_t kMostMappings = 256;
constexpr std::size_t kMostLines = 4096;
constexpr greg_t kTrapFlag = 0x100;
constexpr greg_t kWriteFault = 2;  // Of the page fault's error code.

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint64_t file = 0;    ///< Its inode: both sides may have the same memory at two addresses.
  std::uint64_t offset = 0;  ///< Of `begin` in the file.
  int protection = 0;
};
struct Line {
  std::uint64_t file = 0;
  std::uint64_t offset = 0;
  bool is_written = false;
};

// The handlers use these, without allocating.
struct State {
  std::array<Mapping, kMostMappings> mappings;
  std::size_t mapping_count = 0;
  std::array<Line, kMostLines> touched;  ///< By the current operation.
  std::size_t touched_count = 0;
  std::array<Mapping, 8> lent;  ///< Accessible until the current instruction is done.
  std::size_t lent_count = 0;
  Touched sum;
  bool is_noting = false;
};
State state;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): a signal handler has no argument for it.

[[noreturn]] void die(const char* why) {
  std::fprintf(stderr, "budget: %s\n", why);
  std::_Exit(EXIT_FAILURE);
}

[[nodiscard]] bool protect(std::uintptr_t begin, std::uintptr_t end, int protection) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses out of /proc/self/maps.
  return mprotect(reinterpret_cast<void*>(begin), end - begin, protection) == 0;
}
void protect(const Mapping& mapping, int protection) noexcept {
  if (!protect(mapping.begin, mapping.end, protection)) die("mprotect failed");
}

/// Gives the page back until the next step: the whole mapping where its pages are larger ones.
void lend(const Mapping& mapping, std::uintptr_t address) noexcept {
  if (state.lent_count == state.lent.size()) die("one instruction touches too many pages");
  Mapping& page = state.lent[state.lent_count++];
  page = mapping;
  page.begin = address & ~(kPageBytes - 1);
  page.end = page.begin + kPageBytes;
  if (protect(page.begin, page.end, page.protection)) return;
  page = mapping;
  protect(page, page.protection);
}

void note(const Mapping& mapping, std::uintptr_t address, bool is_write) noexcept {
  const std::uint64_t offset = (mapping.offset + (address - mapping.begin)) & ~(kLineBytes - 1);
  for (std::size_t i = 0; i < state.touched_count; ++i) {
    Line& line = state.touched[i];
    if (line.file != mapping.file || line.offset != offset) continue;
    line.is_written |= is_write;
    return;
  }
  if (state.touched_count == kMostLines) die("an operation touches too many lines");
  state.touched[state.touched_count++] = {mapping.file, offset, is_write};
}

void on_fault(int /*signal*/, siginfo_t* info, void* raw) noexcept {
  greg_t* const registers = static_cast<ucontext_t*>(raw)->uc_mcontext.gregs;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (std::size_t i = 0; i < state.mapping_count && state.is_noting; ++i) {
    const Mapping& mapping = state.mappings[i];
    if (address < mapping.begin || address >= mapping.end) continue;
    note(mapping, address, (registers[REG_ERR] & kWriteFault) != 0);
    lend(mapping, address);
    registers[REG_EFL] |= kTrapFlag;
    return;
  }
  die("a fault that is not of shared memory");
}

void on_step(int /*signal*/, siginfo_t* /*info*/, void* raw) noexcept {
  static_cast<ucontext_t*>(raw)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
  for (std::size_t i = 0; i < state.lent_count; ++i) protect(state.lent[i], PROT_NONE);
  state.lent_count = 0;
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(signal, &action, nullptr) != 0) die("sigaction failed");
}

}  // namespace

bool is_available() noexcept { return true; }

void open() {
  state.mapping_count = 0;
  state.sum = {};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // 7f0123456000-7f0123457000 rw-s 00000000 00:01 1234 /memfd:name
    std::istringstream words(line);
    Mapping mapping;
    char dash = 0;
    std::string access;
    std::string device;
    words >> std::hex >> mapping.begin >> dash >> mapping.end >> access >> mapping.offset >> device >> std::dec >>
        mapping.file;
    if (!words || access.size() != 4) die("/proc/self/maps is not understood");
    if (access[3] != 's' || access[0] != 'r') continue;
    if (state.mapping_count == kMostMappings) die("too many shared mappings");
    mapping.protection = PROT_READ | (access[1] == 'w' ? PROT_WRITE : 0);
    state.mappings[state.mapping_count++] = mapping;
  }
  handle(SIGSEGV, &on_fault);
  handle(SIGTRAP, &on_step);
}

void begin() noexcept {
  state.is_noting = true;
  for (std::size_t i = 0; i < state.mapping_count; ++i) protect(state.mappings[i], PROT_NONE);
}

void end() noexcept {
  state.is_noting = false;
  for (std::size_t i = 0; i < state.mapping_count; ++i) protect(state.mappings[i], state.mappings[i].protection);
}

void end_operation() noexcept {
  for (std::size_t i = 0; i < state.touched_count; ++i)
    ++(state.touched[i].is_written ? state.sum.written : state.sum.read);
  state.touched_count = 0;
}

Touched close() {
  for (const int signal : {SIGSEGV, SIGTRAP})
    if (::signal(signal, SIG_DFL) == SIG_ERR) die("signal failed");
  return state.sum;
}

#else

bool is_available() noexcept { return false; }
void open() {}
void begin() noexcept {}
void end() noexcept {}
void end_operation() noexcept {}
Touched close() { return {}; }

#endif

}  // namespace verbena::budget::lines
