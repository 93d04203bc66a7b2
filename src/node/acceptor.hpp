// The one thread that drives all handshakes of a NIC's servers, and frees what their clients leave behind.
#pragma once

#include "base/fd.hpp"
#include "base/shares.hpp"
#include "base/threads.hpp"
#include "engine/mailbox.hpp"
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
/// leaves at once. To come and to go takes a millisecond or two of a processor, which other clients may need: each
/// other user gets a quarter of this thread, and who is refused, or soon leaves, pays sixteen times.
/// \thread any, except where said
class Acceptor {
 public:
  static constexpr std::size_t kMostVisits = 1024;
  /// Limit for each user other than this process's own.
  static constexpr std::size_t kMostVisitsOfAStranger = 256;
  /// Deadline of a whole handshake. Clients usually hang up earlier, at their own deadline.
  static constexpr std::chrono::milliseconds kTimeout{30'000};
  /// A guest keeps its place for this long even if others wait for one.
  static constexpr std::chrono::milliseconds kPatience{1500};
  /// Who leaves earlier has come in vain.
  static constexpr std::chrono::milliseconds kShortStay{1000};

  /// A connected client's user, if he is another one than this process's; the ticks of a processor that its coming has
  /// cost; and when it came.
  struct Stay {
    std::optional<uid_t> stranger;
    std::uint64_t cost = 0;
    std::uint64_t since = 0;
  };
  /// A client that has left. The acceptor's thread frees what it leaves behind.
  class Leaver : private engine::Mailbox::Letter {
   public:
    explicit Leaver(const Stay& stay) noexcept : stay_(stay) {}
    virtual ~Leaver() = default;

   private:
    friend class Acceptor;
    /// Frees it, and perhaps this object.
    virtual void leave() noexcept = 0;
    const Stay stay_;
    Acceptor* acceptor_ = nullptr;
  };

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
    /// The client is connected: takes it over. `stay` is for its Leaver.
    virtual void done(const Stay& stay) noexcept = 0;
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
  /// Calls `leave` soon, in the acceptor's thread. The acceptor must outlive that call.
  void see_off(Leaver& leaver) noexcept;
  /// Waits until the acceptor's thread has returned from every `leave` that has begun: what it uses may end then.
  void settle() noexcept;

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
    bool is_put_off = false;  ///< Its user has used up the share.
    std::uint64_t cost = 0;   ///< Ticks of a processor so far, and how many of them are charged.
    std::uint64_t charged = 0;
    int watched = -1;  ///< The descriptor in the epoll set.
  };
  using Visits = std::unordered_map<std::uint64_t, Visit>;

  /// A user may connect some clients at once.
  static constexpr std::chrono::milliseconds kBurst{20};
  /// Time until visits that are put off go on.
  static constexpr std::chrono::milliseconds kPause{5};

  explicit Acceptor(nic::Nic& nic) noexcept : nic_(nic) {}
  void run() noexcept;
  void on_event(std::uint64_t id) noexcept;
  void see_off_all() noexcept;
  static void let_out(engine::Mailbox::Letter& letter) noexcept;
  [[nodiscard]] bool put_off(Visit& visit) noexcept;
  void charge(Visit& visit, std::uint64_t used) noexcept;
  void charge(std::optional<uid_t> stranger, std::uint64_t used) noexcept;
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
  Fd departures_;
  engine::Mailbox leavers_;
  Mutex mutex_;  ///< Guards the members below. The thread holds it while it works, which never takes long.
  std::uint64_t next_id_ = 0;
  std::unordered_map<std::uint64_t, Door> doors_;
  Visits visits_;
  bool has_guest_gone_ = false;  ///< Since the waiting clients were last looked at.
  Shares shares_{4, kBurst};
  Deadline resume_ = Deadline::never();  ///< When visits that are put off go on.
  Thread thread_;                        // Last: reads everything above.
};

}  // namespace verbena::node
