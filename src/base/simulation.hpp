// Hooks of a simulation besides clock, random words and threads. Other builds contain none of them.
#pragma once

namespace verbena::simulation {

#if defined(VERBENA_SIMULATION)

/// Call it between two steps if others may see the first one alone. Other tasks may run here.
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

/// The object that `make` returns, made by the first call in this process. It is never destroyed, so code that runs at
/// the end of the process may use it. \thread any
template <class Make>
[[nodiscard]] auto& once_a_process(const Make& make) {
  static auto* const one = make();
  return *one;
}

#endif

}  // namespace verbena::simulation
