// The processes of the scenario `coroutines`, and what they share.
#pragma once

#include "run.hpp"

#include <verbena/coroutines.hpp>
#include <verbena/coroutines_kv.hpp>
#include <verbena/kv.hpp>
#include <verbena/rdma.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::sim::coro {

inline constexpr std::uint16_t kStorePort = 7470;
inline constexpr std::uint16_t kLinkPort = 7471;
inline constexpr unsigned kHands = 6;
inline constexpr unsigned kKeys = 3;
/// Of an operation of a link.
inline constexpr std::size_t kWords = 128;
/// The longest value.
inline constexpr std::size_t kRoomBytes = 70'016;

/// What the seed makes of a run.
struct Shape {
  kv::ServerOptions store_server;
  kv::ClientOptions store_client;
  rdma::Options link;
  unsigned clients = 2;
  unsigned rounds = 10;      ///< Of each client.
  std::vector<bool> direct;  ///< Of each client: whether it needs no queue for what is one-sided.
  std::vector<Fault> faults;
};
[[nodiscard]] Shape shape_of(Random& random);

/// Numbers that are begun one by one, and of which some are known to have got there.
struct Count {
  std::uint64_t begun = 0;
  std::uint64_t sure = 0;
};

/// Messages of a client, by number, which come back at most once each.
struct Echoes {
  std::uint64_t begun = 0;
  std::vector<bool> are_back{};
};

/// All that the processes of a run share.
class Stage {
 public:
  Stage(Tasks& tasks, Shape shape, std::function<void(std::string)> fail)
      : tasks_(tasks), shape_(std::move(shape)), fail_(std::move(fail)) {}

  [[nodiscard]] Tasks& tasks() noexcept { return tasks_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] bool is_calm() const noexcept { return shape_.faults.empty(); }
  void fail(std::string why) {
    if (!tasks_.is_winding_down()) fail_(std::move(why));
  }
  template <class... Facts>
  void tell(fmt::format_string<Facts...> text, Facts&&... facts) {
    tasks_.world().tell(text, std::forward<Facts>(facts)...);
  }

  bool is_serving = false;
  bool is_ending = false;       ///< The server is to end.
  bool is_server_gone = false;  ///< It was told to end, or killed.
  Count sum;                    ///< The cell of the store, to which everybody adds.
  std::uint64_t calls = 0;

 private:
  Tasks& tasks_;
  const Shape shape_;
  std::function<void(std::string)> fail_;
};

/// A store, and a listener that sends back what it gets.
class Server final : private rdma::Handler {
 public:
  explicit Server(Stage& stage) noexcept : stage_(stage) {}
  void run();
  [[nodiscard]] std::string_view state() const noexcept { return state_; }

 private:
  void on_message(rdma::Connection& connection, const rdma::Message& message) noexcept override;

  Stage& stage_;
  std::string_view state_ = "starting";
};

struct Hand;

/// A client: a loop, a link and a client of the store, and rounds of coroutines that are given up somewhere.
class Client final {
 public:
  Client(Stage& stage, unsigned index, std::uint64_t seed) noexcept;
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  void run();
  /// It is to end.
  void leave() noexcept { is_leaving_ = true; }
  [[nodiscard]] std::string_view state() const noexcept { return state_; }

 private:
  using Words = typed::Segment<std::uint64_t>;
  class Driven;

  [[nodiscard]] bool is_over() const noexcept;
  [[nodiscard]] bool connect();
  [[nodiscard]] bool connect_link();
  [[nodiscard]] bool connect_store();
  void disconnect();
  void round();
  void begin(coroutine::CancelSource& source);
  void give_up(coroutine::CancelSource& source);
  void check_memory();
  void check_nothing_waits();
  void settle();
  void take_echoes();
  [[nodiscard]] bool is_whole() const noexcept;

  Stage& stage_;
  const unsigned index_;
  Random random_;
  std::string_view state_ = "connecting";
  bool is_leaving_ = false;
  std::unique_ptr<Driven> handler_;
  std::unique_ptr<rdma::Node> node_;
  typed::MemoryRegion<std::uint64_t> region_;
  std::unique_ptr<coroutine::Loop> loop_;
  std::unique_ptr<kv::Client> store_;
  std::optional<kv::Cell> cell_;
  typed::Link link_;
  Echoes echoes_;
  std::uint64_t last_echo_ = 0;  ///< By a blocking call.
  std::vector<Hand> hands_;
};

}  // namespace verbena::sim::coro
