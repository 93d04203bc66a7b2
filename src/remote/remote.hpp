// Blocking one-sided access: read, write and atomics on the peer's memory, one work request each.
#pragma once

#include "engine/connection.hpp"
#include "link/link.hpp"
#include "nic/nic.hpp"
#include "nic/registered_arena.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace verbena::remote {

using engine::LocalSpan;
using engine::RemoteSpan;

/// Eight bytes of the peer's exported memory that only NICs' atomics change. Aligned to 8.
struct RemoteWord {
  std::uint64_t address = 0;
  std::uint32_t rkey = 0;
};

struct LinkOptions {
  std::uint32_t bounce_bytes = 64 * 1024;  ///< Of one bounce buffer, through which unregistered memory goes. A multiple
                                           ///< of 64, 64 B to 16 MiB; cut to what the NIC takes at once.
  std::uint32_t bounce_buffers = 8;        ///< That many operations may be in quarantine; 1 to 1024.
  std::uint32_t max_inline = 256;          ///< Writes up to this, or to what the NIC gives, go inline.
};

/// One QP for one-sided access, driven by the thread that calls. Every call returns kOk, or:
/// kBadArgument (spans that do not fit each other, a word that is not aligned), kNotFound (no imported window has the
/// key), kOutOfRange, kRemoteAccess (the window lacks the right; nothing was posted), kTimedOut, or why the link is
/// dead.
///
/// Past its deadline a call on the caller's own memory kills the link with kTimedOut, and drains it first, so that the
/// memory is the caller's again when the call returns; that may take Connection::kDrainTimeout more. A call that goes
/// through the link's own memory leaves the link alive: the memory is in quarantine until the NIC is done with it.
/// \thread owner of the loop, except create, connect and import_window (setup)  \alloc setup only
class Link final : private engine::Connection {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Link>> create(engine::CompletionLoop& loop, ibv_pd* pd,
                                                            const LinkOptions& options);
  ~Link() override;

  /// What to hand to the peer, and to `connect` as `local`. May be called again for other user data.
  [[nodiscard]] Result<link::Endpoint> local_endpoint(std::span<const std::byte> user_data);
  /// `how` is the way that the bootstrap found (Dialed::how, Incoming::how); none for blobs.
  [[nodiscard]] Result<void> connect(const link::Endpoint& local, const link::Endpoint& remote, Deadline deadline,
                                     const link::BringUp& how = {});
  /// Keeps what the bootstrap's `finish` returned until the link ends.
  using Connection::keep;
  /// Makes a window of the peer usable. At most 64. Errors: those of Nic::import_window, kLimit.
  [[nodiscard]] Result<void> import_window(const nic::Window& window, Deadline deadline);
  [[nodiscard]] Result<void> release_window(const nic::Window& window);

  /// Reads from.length bytes to the front of `to`.
  [[nodiscard]] Status read(LocalSpan to, RemoteSpan from, Deadline deadline) noexcept;
  /// Writes all of `from` to the front of `to`.
  [[nodiscard]] Status write(LocalSpan from, RemoteSpan to, Deadline deadline) noexcept;
  /// The same for memory that is not registered, through bounce buffers; a longer transfer is several operations, and
  /// may have happened in part when it fails.
  [[nodiscard]] Status read(std::span<std::byte> to, RemoteSpan from, Deadline deadline) noexcept;
  [[nodiscard]] Status write(std::span<const std::byte> from, RemoteSpan to, Deadline deadline) noexcept;
  /// `old` is what was there; unchanged unless kOk. kUnsupported when this side's device has no atomics.
  [[nodiscard]] Status fetch_add(RemoteWord word, std::uint64_t delta, std::uint64_t& old, Deadline deadline) noexcept;
  [[nodiscard]] Status compare_swap(RemoteWord word, std::uint64_t expected, std::uint64_t desired, std::uint64_t& old,
                                    Deadline deadline) noexcept;

  /// The raw queue pair; null once a drain had to destroy it.
  [[nodiscard]] ibv_qp* queue_pair() const noexcept { return qp(); }
  /// Kills the link with `reason`; it drains during polls.
  void fail(Status reason) noexcept { begin_failure(reason); }
  [[nodiscard]] bool alive() const noexcept { return connected_ && reason() == Status::kOk; }
  [[nodiscard]] bool drained() const noexcept { return is_drained(); }
  [[nodiscard]] Status failure() const noexcept { return reason(); }

 private:
  friend class PhysicalMap;  // Lends the window of each access.
  /// Whose memory an operation touches, which decides what a passed deadline does.
  enum class Memory : std::uint8_t { kCallers, kOurs };
  static constexpr std::uint32_t kSends = 64;

  Link(engine::CompletionLoop& loop, const LinkOptions& options);
  void handle(std::span<const ibv_wc> completions) noexcept override;
  void on_attached() noexcept override {}
  void on_drained() noexcept override;
  void complete(std::uint64_t id) noexcept;

  [[nodiscard]] Result<void> create(ibv_pd* pd);
  [[nodiscard]] Status check(const RemoteSpan& span, std::uint32_t access) noexcept;
  [[nodiscard]] Status transfer(ibv_wr_opcode opcode, LocalSpan local, RemoteSpan remote, Memory memory,
                                Deadline deadline) noexcept;
  [[nodiscard]] Status atomic(ibv_send_wr& request, RemoteWord word, std::uint64_t& old, Deadline deadline) noexcept;
  /// A slot whose bounce buffer is free, waiting for one out of quarantine.
  [[nodiscard]] Status take_slot(std::uint32_t& slot, Deadline deadline) noexcept;
  [[nodiscard]] Status run(ibv_send_wr& request, std::uint32_t slot, Memory memory, Deadline deadline) noexcept;
  /// Ends a call without its completion: quarantine for our memory, a drain for the caller's.
  void give_up(Memory memory) noexcept;
  [[nodiscard]] std::byte* bounce(std::uint32_t slot) const noexcept {
    return memory_.data() + std::size_t{slot} * options_.bounce_bytes;
  }

  const LinkOptions options_;
  engine::InFlight in_flight_;
  std::uint32_t waiting_ = engine::wr::kNoSlot;  ///< The slot of the call that is blocked.
  bool connected_ = false;
  bool has_atomics_ = true;
  engine::WindowTable windows_;
  ibv_send_wr transfer_{};
  ibv_send_wr atomic_{};
  ibv_sge sge_{};
  ibv_sge atomic_sge_{};
  std::optional<link::Endpoint> endpoint_;
  nic::RegisteredArena memory_;  ///< Bounce buffers.
};

}  // namespace verbena::remote
