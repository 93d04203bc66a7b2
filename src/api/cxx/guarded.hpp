// Calls of the C++ API that return a Result.
#pragma once

#include "base/cancellation.hpp"
#include "base/failure.hpp"
#include "base/fork.hpp"

#include <new>
#include <type_traits>

namespace verbena::api {

/// Runs `body` and returns its Result; a failure gets this call's name. bad_alloc becomes kNoMemory: no exception
/// leaves the library.
template <class Body>
[[nodiscard]] std::invoke_result_t<Body> guarded(const char* call, Body&& body) noexcept {
  if (const Result<void> in_parent = check_process(); !in_parent)
    return fail(in_parent.error().status(), call, 0, "{}", in_parent.error().text());
  const CancellationHeld held;
  try {
    auto result = body();
    if (result) return result;
    const Error& error = result.error();
    return fail(error.status(), call, error.system_errno(), "{}", error.text());
  } catch (const std::bad_alloc&) {
    return fail(Status::kNoMemory, call, 0, "{}", sentence_of(Status::kNoMemory));
  }
}

}  // namespace verbena::api
