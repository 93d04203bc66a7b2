// Words in memory that other processes can write at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena {

/// A word that processes share. Each call is one load, one store or one read-modify-write of the whole word. The
/// compiler may load a plain field twice, once for a check and once for the use, and a peer can write between them.
/// There is no conversion: every read is an explicit call, and returns a private copy. \thread any
template <class T>
class PeerWord {
 public:
  [[nodiscard]] T load(std::memory_order order = std::memory_order_seq_cst) const noexcept { return word_.load(order); }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) noexcept { word_.store(value, order); }
  T exchange(T value, std::memory_order order) noexcept { return word_.exchange(value, order); }
  T fetch_or(T bits, std::memory_order order) noexcept { return word_.fetch_or(bits, order); }

 private:
  static_assert(std::atomic<T>::is_always_lock_free && sizeof(std::atomic<T>) == sizeof(T));
  std::atomic<T> word_;
};

/// Reads, by one load, the word at an aligned place in bytes that processes share. \thread any
template <class T>
[[nodiscard]] T load_peer_word(const std::byte* at, std::memory_order order) noexcept {
  return __atomic_load_n(reinterpret_cast<const T*>(at), static_cast<int>(order));
}

}  // namespace verbena
