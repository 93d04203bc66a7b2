// Stacks of tasks. ASan has to be told which one runs: else it takes what it finds on the others for errors.
#pragma once

#include <boost/context/protected_fixedsize_stack.hpp>

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define VERBENA_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_SIM_ASAN 1
#endif
#endif
#if defined(VERBENA_SIM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace verbena::sim {

/// Where a stack is, and what ASan keeps of it while another one runs.
struct Stack {
  const void* bottom = nullptr;
  std::size_t size = 0;
  void* kept = nullptr;
};

#if defined(VERBENA_SIM_ASAN)
/// ASan puts a gap beside each variable.
inline constexpr std::size_t kStackBytes = std::size_t{1} << 20;

/// The stack that runs is about to go over to `to`. A null `from` does not come back.
inline void before_switch(Stack* from, const Stack& to) noexcept {
  __sanitizer_start_switch_fiber(from != nullptr ? &from->kept : nullptr, to.bottom, to.size);
}
/// The stack `here` runs again, or for the first time. `from` learns where the one before it is.
inline void after_switch(const Stack& here, Stack* from) noexcept {
  __sanitizer_finish_switch_fiber(here.kept, from != nullptr ? &from->bottom : nullptr,
                                  from != nullptr ? &from->size : nullptr);
}
inline void begin_stack(const Stack& stack) noexcept { __asan_unpoison_memory_region(stack.bottom, stack.size); }
#else
inline constexpr std::size_t kStackBytes = std::size_t{256} << 10;

inline void before_switch(Stack*, const Stack&) noexcept {}
inline void after_switch(const Stack&, Stack*) noexcept {}
inline void begin_stack(const Stack&) noexcept {}
#endif

/// Makes the stack of a task, and tells where it is.
class StackMaker {
 public:
  explicit StackMaker(Stack& made) noexcept : made_(&made) {}
  [[nodiscard]] boost::context::stack_context allocate() {
    const boost::context::stack_context context = pages_.allocate();
    *made_ = {.bottom = static_cast<char*>(context.sp) - context.size, .size = context.size};
    begin_stack(*made_);
    return context;
  }
  void deallocate(boost::context::stack_context& context) noexcept { pages_.deallocate(context); }

 private:
  Stack* made_;
  boost::context::protected_fixedsize_stack pages_{kStackBytes};
};

}  // namespace verbena::sim
