// Bare exchanges of cache lines between two threads: what anything that is built of them can reach at best.
#pragma once

#include "variant.hpp"

#include <span>

namespace verbena::slices {

/// The exchange that tells in which state the machine is: a ring of lines each way.
[[nodiscard]] const Operation& probe() noexcept;
/// One line that both write, one each way, and rings; with several pauses between two looks.
[[nodiscard]] std::span<const Operation> bare_operations() noexcept;

}  // namespace verbena::slices
