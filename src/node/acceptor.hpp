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

/// Handshakes are state machines, each with a deadline: a silent, slow or stopped client delays nobody. There are at
/// most kMostVisits at a time; one more pushes out the oldest one of the user who has the most. A client that hangs up
/// leaves at once. \thread any, except where said
class Acceptor {
 public:
  static constexpr std::size_t kMostVisits = 1024;
  /// Limit for each user other than this process's own.
  static constexpr std::size_t kMostVisitsOfAStranger = 256;
  /// Deadline of a whole handshake. Clients usually hang up earlier, at their own deadline.
  static constexpr std::chrono::milliseconds kTimeout{30'000};
  /// A guest keeps its place for this long even if others wait for one.
  static constexpr std::chrono::milliseconds kPatience{1500};

  /// A connecting client. The acceptor's thread calls it, and destroys it if it does not become `done`; the client
  /// notices that.
  class Guest {
   public:
    virtual ~Guest() = default;
    /// Attempts the next step. kAgain: the client, or its NIC, has not done its part yet.
    [[nodiscard]] virtual Result<void> step() = 0;
    /// Its descriptor, and the poll events that `step` waits for; -1: the NIC reports progress.
    [[nodiscard]] virtual int fd() const noexcept = 0;
    [[nodiscard]] virtual short events() const noexcept = 0;
    /// The client is connected: takes it over.
    virtual void done() noexcept = 0;
    /// Tells the client why it is refused.
    virtual void refuse(const Error& why) noexcept = 0;
  };
  /// The owner of a listener.
  class Host {
   public:
    /// A client has sent a valid hello. On failure the handshake stays with the acceptor, unless the client has been
    /// told. After kLimit the acceptor calls `welcome` again once a guest whose place the client may take is gone.
    [[nodiscard]] virtual Result<std::unique_ptr<Guest>> welcome(std::unique_ptr<link::Handshake>& handshake) = 0;
    /// A confirmed client was not accepted.
    virtual void refused() noexcept {}

   protected:
    ~Host() = default;
  };

  /// Errors: kLimit (files, threads).
  [[nodiscard]] static Result<std::unique_ptr<Acceptor>> start(nic::Nic& nic);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// Calls `host` for each client of `listener` from now on, until `close`. Errors: kLimit (files).
  [[nodiscard]] Result<std::uint64_t> open(std::unique_ptr<link::Listener> listener, Host& host);
  /// Refuses the connecting clients and ends the listener. The host is not called any more.
  void close(std::uint64_t listener) noexcept;

 private:
  struct Door {
    std::unique_ptr<link::Listener> listener;
    Host* host = nullptr;
  };
  struct Visit {
    std::unique_ptr<link::Handshake> claim;  ///< Set until it is confirmed and has a place; then there is a guest.
    std::unique_ptr<Guest> guest;
    std::uint64_t door = 0;
    std::optional<uid_t> uid;  ///< User of the process that the client names.
    Deadline deadline = Deadline::never();
    Deadline patience = Deadline::never();  ///< A guest's: after this its place may go to another client.
    bool is_confirmed = false;
    bool awaits_place = false;
    int watched = -1;  ///< The descriptor in the epoll set.
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
  Fd progress_;  ///< The NIC signals it.
  Mutex mutex_;  ///< Guards the members below. The thread holds it while it works, which never takes long.
  std::uint64_t next_id_ = 0;
  std::unordered_map<std::uint64_t, Door> doors_;
  Visits visits_;
  bool has_guest_gone_ = false;  ///< Since the waiting clients were last looked at.
  Thread thread_;                // Last: reads everything above.
};

}  // namespace verbena::node
