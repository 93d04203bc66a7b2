// The one thread that drives all handshakes of a NIC's servers.
#pragma once

#include "base/fd.hpp"
#include "base/threads.hpp"
#include "link/link.hpp"
#include "nic/nic.hpp"

#include <verbena/deadline.hpp>
#include <verbena/error.hpp>

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

namespace verbena::node {

/// Handshakes are state machines, each with a deadline: a client that is silent, slow or stopped holds up nobody. There
/// are kMostVisits at a time; one more pushes out the oldest of the user who has most of them. A client that hangs up
/// leaves at once. \thread any, except where said
class Acceptor {
 public:
  static constexpr std::size_t kMostVisits = 1024;
  /// The most of one user that is not this process's own.
  static constexpr std::size_t kMostVisitsOfAStranger = 256;
  /// Deadline of a whole handshake. Clients hang up at their own, which is earlier as a rule.
  static constexpr std::chrono::milliseconds kTimeout{30'000};
  /// A guest keeps its place for so long even if others wait for one.
  static constexpr std::chrono::milliseconds kPatience{1500};

  /// A client on its way in. Called by the acceptor's thread, and destroyed when it is not `done`, which the client
  /// sees.
  class Guest {
   public:
    virtual ~Guest() = default;
    /// One attempt to go on. kAgain: the client, or its NIC, has not done its part yet.
    [[nodiscard]] virtual Result<void> step() = 0;
    /// Its descriptor, and the poll events that `step` waits for; -1: its NIC tells of progress.
    [[nodiscard]] virtual int fd() const noexcept = 0;
    [[nodiscard]] virtual short events() const noexcept = 0;
    /// The client is connected: takes it in.
    virtual void done() noexcept = 0;
    /// The client is told why it is not.
    virtual void refuse(const Error& why) noexcept = 0;
  };
  /// The owner of a listener.
  class Host {
   public:
    /// A client has said hello, and it was that client. On failure the handshake is left, unless the client has been
    /// told; with kLimit `welcome` is called again when a guest has gone whose place the client may take.
    [[nodiscard]] virtual Result<std::unique_ptr<Guest>> welcome(std::unique_ptr<link::Handshake>& handshake) = 0;
    /// A client that was that client is not taken in.
    virtual void refused() noexcept {}

   protected:
    ~Host() = default;
  };

  /// Errors: kLimit (files, threads).
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> start(nic::Nic& nic);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// From now on `host` is called for each client of `listener`, until `close`. Errors: kLimit (files).
  [[nodiscard]] Result<std::uint64_t> open(std::unique_ptr<link::Listener> listener, Host& host);
  /// Refuses the clients that are on their way, and ends the listener. The host is not called any more.
  void close(std::uint64_t listener) noexcept;

 private:
  struct Door {
    std::unique_ptr<link::Listener> listener;
    Host* host = nullptr;
  };
  struct Visit {
    std::unique_ptr<link::Handshake> claim;  ///< Until it is confirmed and has a place; then there is a guest.
    std::unique_ptr<Guest> guest;
    std::uint64_t door = 0;
    std::optional<uid_t> uid;  ///< Of the process that the client names.
    Deadline deadline = Deadline::never();
    Deadline patience = Deadline::never();  ///< A guest's: then its place may be another's.
    bool is_confirmed = false;
    bool awaits_place = false;
    int watched = -1;  ///< The descriptor that is in the epoll set.
  };
  using Visits = std::unordered_map<std::uint64_t, Visit>;

  explicit Acceptor(nic::Nic& nic) noexcept : nic_(nic) {}
  void run() noexcept;
  void on_event(std::uint64_t id) noexcept;
  void look_at_door(std::uint64_t id, Door& door) noexcept;
  void let_in(std::uint64_t door, std::unique_ptr<link::Handshake> claim) noexcept;
  void make_room(std::optional<uid_t> newcomer) noexcept;
  [[nodiscard]] Result<void> advance(Visit& visit);
  [[nodiscard]] Result<std::unique_ptr<Guest>> welcome(Visit& visit);
  void step(std::uint64_t id) noexcept;
  template <class Which>
  void step_all(Which&& which) noexcept;
  template <class Which>
  void end_if(Which&& which, const Error& why) noexcept;
  void end(Visits::iterator visit, const Error& why) noexcept;
  [[nodiscard]] bool watch(std::uint64_t id, Visit& visit) noexcept;
  void unwatch(Visit& visit) noexcept;
  [[nodiscard]] Deadline next_due() const noexcept;
  [[nodiscard]] Deadline next_patience() const noexcept;

  nic::Nic& nic_;
  Fd epoll_;
  Fd stop_;
  Fd progress_;  ///< Signalled by the NIC.
  Mutex mutex_;  ///< Guards the members below. The thread holds it while it works, which is never long.
  std::uint64_t next_id_ = 0;
  std::unordered_map<std::uint64_t, Door> doors_;
  Visits visits_;
  bool has_guest_gone_ = false;  ///< Since clients that wait for a place were looked at.
  Thread thread_;                // Last: reads everything above.
};

}  // namespace verbena::node
