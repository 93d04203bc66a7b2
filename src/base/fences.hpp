// Fences for orders that x86-64 gives for nothing and AArch64 does not: one for each use, with the two agents that it
// orders. Where one word alone carries an order, the acquire or release is on that word instead.
// test/base/litmus_test.cpp takes each fence out of a model of its protocol, and finds what goes wrong then.
//
// memcpy copies peers' memory, which in C++'s terms is no atomic access. On the processors we support the fences order
// it as they order atomic accesses.
#pragma once

#include <atomic>

namespace verbena::fences {

/// On x86-64 none of the fences is an instruction, so callers need no branch around one.
#if defined(__x86_64__)
inline constexpr bool kAreFree = true;
#else
inline constexpr bool kAreFree = false;
#endif

namespace detail {
/// TSan does not know fences, and GCC warns about them.
#if defined(__SANITIZE_THREAD__)
#define VERBENA_NO_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VERBENA_NO_FENCES 1
#endif
#endif
#if defined(VERBENA_NO_FENCES)
inline void acquire() noexcept { std::atomic_signal_fence(std::memory_order_acquire); }
inline void release() noexcept { std::atomic_signal_fence(std::memory_order_release); }
#undef VERBENA_NO_FENCES
#else
inline void acquire() noexcept { std::atomic_thread_fence(std::memory_order_acquire); }
inline void release() noexcept { std::atomic_thread_fence(std::memory_order_release); }
#endif
/// Orders the compiler only. The other agent orders this processor: it calls membarrier between its own store and its
/// own load, and everything here comes either before or after that call.
inline void light() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
}  // namespace detail

/// \name One-sided access
/// @{
/// After the bytes of a READ: the initiator's thread has read them before anything that it does next, such as another
/// READ. A reader of the store relies on this: it has read the item before the value, and the value before it looks at
/// the item again. The other agent is the writer of that memory, for example the store's worker.
inline void read_before_next() noexcept { detail::acquire(); }
/// Before the bytes of a WRITE: a thread that sees a word changed by this WRITE also sees the same initiator's earlier
/// WRITEs.
inline void writes_in_order() noexcept { detail::release(); }
/// @}

/// \name The store
/// @{
/// Between the mark that a large item is superseded and the next bytes in its value's block, both the worker's. A
/// reader that took the new bytes for the old value finds the mark when it looks at the item again. A locked
/// instruction for the mark is not enough: on AArch64 it orders its load before what follows, but not its store.
inline void superseded_before_reuse() noexcept { detail::release(); }
/// Between an index entry that no longer names an item and the next bytes in the item's block, both the worker's. A
/// guarded reader that took the new bytes for the item finds another entry when it looks at the index again.
inline void unindexed_before_reuse() noexcept { detail::release(); }
/// @}

/// \name Against an agent that calls membarrier
/// @{
/// Between storing the initiator's odd access word and loading the key. The other agent is an owner that revokes the
/// key, calls membarrier and looks at the word.
inline void access_before_key() noexcept { detail::light(); }
/// Between storing the odd poll word of a completion queue's owner and checking whether the control plane is in its
/// lists. The other agent is the control plane, which says so, calls membarrier and looks at the poll word.
inline void poll_before_control() noexcept { detail::light(); }
/// Between publishing a sender's message (or anything else) and checking whether the receiver sleeps or has parked the
/// queue pair. The other agent is the receiver, which says so, calls membarrier and looks at the ring once more.
inline void message_before_bell() noexcept { detail::light(); }
/// Between publishing what a receiver has consumed or posted (or that it is ready) and checking whether the sender
/// sleeps until then. The other agent is the sender, which says so, calls membarrier and looks once more.
inline void credit_before_bell() noexcept { detail::light(); }
/// Between storing a thread's own mark of an Exclusive and checking whether it is still the last one there. The other
/// agent is a thread that takes that place, calls membarrier and looks at the mark.
inline void mark_before_last() noexcept { detail::light(); }
/// @}

}  // namespace verbena::fences
