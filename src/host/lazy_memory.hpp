// Memory that takes only as many pages as are used.
#pragma once

#include "host/mapping.hpp"

#include <verbena/error.hpp>

#include <cstddef>

namespace verbena::host {

/// Move-only owner of zeroed private memory whose pages take memory at their first touch: for tables that are large but
/// mostly unused.
class LazyMemory {
 public:
  /// `what`: its purpose for errors, as in "making a key table". Errors: kNoMemory, kSystem.
  [[nodiscard]] static Result<LazyMemory> create(std::size_t size, const char* what);
  [[nodiscard]] std::byte* data() const noexcept { return mapping_.data(); }

 private:
  Mapping mapping_;
};

}  // namespace verbena::host
