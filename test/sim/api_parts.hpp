// The processes of the scenario `api`, and what they share: connections as both sides see them.
#pragma once

#include "api_checks.hpp"
#include "run.hpp"

#include "base/threads.hpp"
#include "channel/life.hpp"

#include <verbena/rdma.hpp>

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::sim::api {

inline constexpr std::uint16_t kPort = 7471;
inline constexpr std::size_t kWindowBytes = 65'536;
inline constexpr std::size_t kBoardBytes = 65'536;
/// Of a window, for atomics.
inline constexpr std::size_t kWordBytes = 64;
inline constexpr std::size_t kSliceBytes = 12'288;
inline constexpr unsigned kMostClients = 4;
/// More than any message has.
inline constexpr std::size_t kMostBytes = std::size_t{1} << 20;

/// What the seed makes of a run.
struct Shape {
  unsigned clients = 2;
  unsigned connections = 1;  ///< Of each client at a time.
  unsigned steps = 100;      ///< Of each client.
  unsigned restarts = 0;     ///< Of the listener.
  bool has_handler = false;  ///< The server answers in callbacks.
  bool has_node = false;
  bool is_window_shared = false;
  bool discards = false;  ///< The server drops messages and counts them.
  rdma::Options server;
  rdma::Options client;
  std::vector<Fault> faults;
};
[[nodiscard]] Shape shape_of(Random& random);

/// The longest that a goodbye may take.
inline constexpr auto kLinger = static_cast<Nanoseconds>(channel::Life::kLinger.count());

/// What one side of a connection has done.
struct Side {
  Nanoseconds leaves = 0;  ///< When it began to close; 0: it has not.
  Nanoseconds left = 0;    ///< When that had returned.
  Status reason = Status::kOk;
  bool gave_up = false;  ///< It may have left registered memory to the NIC past a deadline, which ends the connection.
};

struct Link {
  Link(std::uint64_t its_number, unsigned its_client) noexcept
      : number(its_number), client(its_client), up(2 * its_number), down(2 * its_number + 1) {}
  std::uint64_t number;
  unsigned client;
  Nanoseconds began = 0;
  Stream up;                ///< To the server.
  Stream down;              ///< To the client.
  Region* there = nullptr;  ///< The part of the server's window that the client writes.
  std::size_t base = 0;     ///< Its offset in the window.
  std::unique_ptr<Region> own_there;
  std::unique_ptr<Region> here;      ///< The client's window, which the server writes.
  std::deque<Region> named;          ///< Memory of the client that the server finds by name: the last one.
  bool has_withdrawn = false;        ///< It has taken memory back that the server may have been writing.
  std::unique_ptr<Region> physical;  ///< Memory of the client that the server reaches by physical addresses.
  Sum sum;                           ///< In the client's window.
  Side client_side;
  Side server_side;
};

/// Who calls, on which connection.
struct Caller {
  Link& link;
  rdma::Connection& connection;
  bool is_server = false;
  bool has_thread = true;  ///< A thread drives the connection.
  bool is_shared = false;  ///< Another task calls, too.
};

/// A call that is looked at.
struct Call {
  const char* name = "";
  std::optional<Deadline> deadline{};
  std::initializer_list<Status> returns{};  ///< Besides what all calls may return.
};

/// All that the processes of a run share.
class Stage {
 public:
  Stage(Tasks& tasks, Shape shape, std::function<void(std::string)> fail);

  [[nodiscard]] Tasks& tasks() noexcept { return tasks_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] Nanoseconds now() const noexcept { return tasks_.now(); }
  void sleep(Nanoseconds time) { (void)tasks_.sleep(&idle_, now() + time); }
  void fail(std::string why);
  template <class... Facts>
  void tell(fmt::format_string<Facts...> text, Facts&&... facts) {
    tasks_.world().tell(text, std::forward<Facts>(facts)...);
  }

  Link& add_link(unsigned client);
  [[nodiscard]] Link* find_link(std::uint64_t number) noexcept;
  /// By the server's window, which is the connection's own; null before the client has greeted.
  [[nodiscard]] Link* find_link(std::span<const std::byte> window) noexcept;
  /// The bytes of the board that a client writes; of the shared window, likewise.
  [[nodiscard]] Region& slice(unsigned client) { return slices_[client]; }
  [[nodiscard]] Region& window_slice(unsigned client) { return window_slices_[client]; }
  [[nodiscard]] std::span<std::byte> board() noexcept { return board_; }
  [[nodiscard]] std::span<std::byte> window() noexcept { return window_; }
  Sum sum;      ///< The board's first word.
  Swaps swaps;  ///< Its second one.
  /// What is wrong with the words in the end.
  void check_words();

  // --- what happens to the processes
  void set_begin(Nanoseconds begin) noexcept { faults_begin_ = begin; }
  void kill(unsigned process) noexcept { killed_[process] = now(); }
  [[nodiscard]] Nanoseconds killed(unsigned process) const noexcept { return killed_[process]; }
  Nanoseconds listens_since = 0;   ///< 0: it does not.
  std::vector<Nanoseconds> stops;  ///< When listeners began to stop.
  [[nodiscard]] Nanoseconds last_stop() const noexcept { return stops.empty() ? 0 : stops.back(); }
  bool is_ending = false;

  /// Time that faults may have taken from whoever has called since then.
  [[nodiscard]] Nanoseconds lost_since(Nanoseconds begin) const {
    return sim::lost_since(shape_.faults, faults_begin_, begin, now());
  }
  /// Whether anybody was cut off since then: what others did may never be heard of.
  [[nodiscard]] bool was_cut_since(Nanoseconds begin) const;

  /// Calls, and looks at how long it took and what came of it.
  template <class Body>
  Status call(const Caller& caller, const Call& call, Body&& body) {
    const Nanoseconds begin = now();
    const Status status = body();
    check_call(caller, call, begin, status);
    return status;
  }
  void check_call(const Caller& caller, const Call& call, Nanoseconds begin, Status status);
  /// A connection has ended, and its user was told why.
  void check_end(const Link& link, bool is_server, Status reason);
  /// The connection is dead: everything says so at once.
  void check_dead(const Caller& caller, const char* name, Status status);

  /// Whether faults may have kept the goodbye of one side from the other.
  [[nodiscard]] bool may_lose_goodbye(const Link& link, bool is_of_server) const;

  std::uint64_t calls = 0;

 private:
  [[nodiscard]] bool may_end_as(const Link& link, bool is_server, Status reason) const;

  Tasks& tasks_;
  const Shape shape_;
  std::function<void(std::string)> fail_;
  std::deque<Link> links_;
  std::span<std::byte> board_;
  std::span<std::byte> window_;
  std::vector<std::byte> memory_;
  std::deque<Region> slices_;
  std::deque<Region> window_slices_;
  std::array<Nanoseconds, kMostClients + 1> killed_{};
  Nanoseconds faults_begin_ = 0;
  char idle_ = 0;
};

/// The server: listeners, one after the other, and the answers to clients.
class Server final : private rdma::Handler {
 public:
  Server(Stage& stage, std::uint64_t seed) noexcept : stage_(stage), random_(seed * 31 + 7) {}
  void run();
  [[nodiscard]] std::string_view state() const noexcept { return state_; }

 private:
  struct Guest {
    rdma::Connection* connection = nullptr;
    Link* link = nullptr;  ///< Null until it has said who it is.
  };
  void on_accept(rdma::Connection& connection) noexcept override;
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override;
  void on_disconnect(rdma::Connection& connection, Status reason) noexcept override;

  [[nodiscard]] bool serve(rdma::Node* node, bool is_last);
  void stop(rdma::Listener& listener);
  void accept(rdma::Listener& listener);
  void attend(std::unique_ptr<rdma::Connection> connection);
  void end(const Guest& guest, Status reason);
  /// False: the connection is to be closed.
  void answer_in_callback(rdma::Connection& connection, const rdma::Message& message);
  [[nodiscard]] bool take(Guest& guest, const rdma::Message& message);
  void answer(const Caller& caller, const Stream::Note& note);
  void reply(const Caller& caller, std::size_t length);
  void write(const Caller& caller, const Request& request);
  void write_immediate(const Caller& caller, const Request& request);
  void read(const Caller& caller, const Request& request);
  void write_named(const Caller& caller, const Request& request);
  void use_physical(const Caller& caller, const Request& request);
  void add(const Caller& caller);

  Stage& stage_;
  Random random_;
  std::string_view state_ = "starting";
  std::deque<Guest> guests_;
  Nanoseconds in_callbacks_ = 0;  ///< Since the listener began to stop.
  std::vector<Thread> threads_;
};

/// A client: some connections, and one call after the other.
class Client final {
 public:
  Client(Stage& stage, unsigned index, std::uint64_t seed) noexcept;
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void run();
  /// It is to close its connections and end.
  void leave() noexcept { is_leaving_ = true; }
  [[nodiscard]] std::string_view state() const noexcept { return state_; }

 private:
  struct Started;
  struct Withdrawn;
  class Peer;
  [[nodiscard]] bool is_over() const noexcept;
  void connect();
  [[nodiscard]] bool greet(Peer& peer);
  void step(Peer& peer);
  void finish(Peer& peer);
  void take_rest(Peer& peer);
  [[nodiscard]] std::optional<Deadline> draw_deadline();
  [[nodiscard]] std::size_t draw_length();

  void send(Peer& peer, Request request);
  void ask(Peer& peer);
  void receive(Peer& peer, std::optional<Deadline> deadline);
  void wait_for_answer(Peer& peer);
  void write(Peer& peer);
  void read(Peer& peer);
  void write_immediate(Peer& peer);
  void use_board(Peer& peer);
  void use_words(Peer& peer);
  void start_some(Peer& peer);
  void take_completions(Peer& peer, bool waits);
  void find_nothing(Peer& peer);
  void publish(Peer& peer);
  void export_memory(Peer& peer);
  void withdraw(Peer& peer);
  void check_withdrawn(const Peer& peer);
  void be_wrong(Peer& peer);
  void look(Peer& peer);
  void let_it_close(Peer& peer);
  void share(Peer& peer);

  Stage& stage_;
  const unsigned index_;
  Random random_;
  std::string_view state_ = "connecting";
  bool is_leaving_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Peer>> gone_;  ///< Handlers outlive their connections.
};

}  // namespace verbena::sim::api
