// Orders that x86-64 gives for nothing and AArch64 does not: a fence for each use, and the two agents that it orders.
// Where one word alone carries an order, the acquire or release is on that word instead. test/base/litmus_test.cpp
// takes each fence out of a model of its protocol, and finds what goes wrong then.
//
// The memory of others is copied by memcpy, which is no atomic access in the letter of C++; the fences order it on the
// processors that there are, as they would order atomic accesses.
#pragma once

#include <atomic>

namespace verbena::fences {

/// On x86-64 none of them is an instruction: whoever would have to branch around one does not.
#if defined(__x86_64__)
inline constexpr bool kAreFree = true;
#else
inline constexpr bool kAreFree = false;
#endif

namespace detail {
/// TSan knows no fences, and GCC warns of them there.
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
/// The compiler's order. The processor's is made by the other agent, who calls membarrier between its own store and its
/// own look: everything here is on one side of that, or on the other.
inline void light() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
}  // namespace detail

/// \name Of one-sided access
/// @{
/// After the bytes of a READ. The initiator's thread has them before anything that it does next, which may be another
/// READ: a reader of the store knows by it that the item was live before it read the value, and the value read before
/// it looks at the item once more. The other agent is whoever writes that memory, the store's worker for one.
inline void read_before_next() noexcept { detail::acquire(); }
/// Before the bytes of a WRITE. Who polls a word that this WRITE changes sees what the same initiator's WRITEs before
/// brought.
inline void writes_in_order() noexcept { detail::release(); }
/// @}

/// \name Of the store
/// @{
/// Between the mark that a large item is superseded and the next bytes in its value's block, both the worker's. A
/// reader that took such bytes for the old value finds the mark when it looks at the item again. A locked instruction
/// for the mark does not do: on AArch64 it orders its load before what follows, and not its store.
inline void superseded_before_reuse() noexcept { detail::release(); }
/// Between an index entry that names an item no more and the next bytes in the item's block, both the worker's. A
/// guarded reader that took such bytes for the item finds another entry when it looks at the index again.
inline void unindexed_before_reuse() noexcept { detail::release(); }
/// @}

/// \name Against an agent that calls membarrier
/// @{
/// The initiator's odd access word, before it looks at the key. Against an owner that revokes the key, calls
/// membarrier and looks at the word.
inline void access_before_key() noexcept { detail::light(); }
/// The odd poll word of a completion queue's owner, before it looks whether the control plane is in its lists. Against
/// the control plane, which says so, calls membarrier and looks at the poll word.
inline void poll_before_control() noexcept { detail::light(); }
/// A sender's message, or what else it published, before it looks whether the receiver sleeps or has parked the queue
/// pair. Against the receiver, which says so, calls membarrier and looks at the ring once more.
inline void message_before_bell() noexcept { detail::light(); }
/// What a receiver has consumed or posted, or that it is ready, before it looks whether the sender sleeps over that.
/// Against the sender, which says so, calls membarrier and looks once more.
inline void credit_before_bell() noexcept { detail::light(); }
/// A thread's own mark of an Exclusive, before it looks whether it is still the last one there. Against another thread,
/// which takes that away, calls membarrier and looks at the mark.
inline void mark_before_last() noexcept { detail::light(); }
/// @}

}  // namespace verbena::fences
