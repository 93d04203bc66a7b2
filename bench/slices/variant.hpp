// What the driver bench/slices loads: one library, in one build, behind functions that it calls in turn with others'.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::slices {

/// An operation that is repeated. Both functions return whether all went well; none reads a clock.
struct Operation {
  const char* name = nullptr;
  bool (*client)(std::uint64_t count) = nullptr;
  /// The other side, in a thread on the other core, which begins first. Null: a thread of the library's own serves
  /// there, or nobody must.
  bool (*server)(std::uint64_t count) = nullptr;
};

struct Variant {
  /// Null, or why it failed. The library's own threads serve on `server_cpu`.
  const char* (*open)(unsigned server_cpu) = nullptr;
  void (*close)() = nullptr;
  const Operation* operations = nullptr;
  std::size_t count = 0;
};

}  // namespace verbena::slices

/// A shared object of this interface defines it.
extern "C" [[gnu::visibility("default")]] const verbena::slices::Variant* slices_variant();
