// Memory that costs what is used of it.
#pragma once

#include "host/mapping.hpp"

#include <verbena/error.hpp>

#include <cstddef>

namespace verbena::host {

/// Move-only owner of zeroed memory of this process alone, of which pages are there once they are touched: what is
/// large for few.
class LazyMemory {
 public:
  /// `what` is it for, as in "making a key table". Errors: kNoMemory, kSystem.
  [[nodiscard]] static Result<LazyMemory> create(std::size_t size, const char* what);
  [[nodiscard]] std::byte* data() const noexcept { return mapping_.data(); }

 private:
  Mapping mapping_;
};

}  // namespace verbena::host
