// Where a simulation comes in besides clock, random words and threads. Nothing of it is in a build that is none.
#pragma once

namespace verbena::simulation {

#if defined(VERBENA_SIMULATION)

/// Between two steps of which others may see the first alone: they may go on here.
void step() noexcept;

namespace detail {
/// The simulated process's object for a key; null at first. `remove` deletes it with the process.
[[nodiscard]] void*& of_process(const void* key, void (*remove)(void*));
}  // namespace detail

/// The object that `make` returns, made by the first call in a simulated process.
template <class Make>
[[nodiscard]] auto& once_a_process(const Make& make) {
  using Object = decltype(make());
  static const char key = 0;
  void*& place = detail::of_process(&key, [](void* object) { delete static_cast<Object>(object); });
  if (place == nullptr) place = make();
  return *static_cast<Object>(place);
}

#else

inline void step() noexcept {}

/// The object that `make` returns, made by the first call in this process, and never destroyed: what runs at the end of
/// the process may use it. \thread any
template <class Make>
[[nodiscard]] auto& once_a_process(const Make& make) {
  static auto* const one = make();
  return *one;
}

#endif

}  // namespace verbena::simulation
