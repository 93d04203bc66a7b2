// The HTTP port where Prometheus reads the store's statistics.
#pragma once

#include "programs/statistics.hpp"

#include <verbena/kv.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct MHD_Connection;
struct MHD_Daemon;

namespace verbena::programs {

/// Where to tell metrics.
struct MetricsArguments {
  std::string address = "127.0.0.1";  ///< A number: of this host, or 0.0.0.0 or :: for all of its own.
  std::optional<std::uint16_t> port;  ///< None: no metrics. 0 takes any free one.
};

/// Connections to the endpoint, in the order in which they came. One thread's.
class MetricsPeers {
 public:
  explicit MetricsPeers(std::size_t most) { peers_.reserve(most); }
  /// Adds one; at most `most` are in it at a time.
  void enter(MHD_Connection* connection);
  void leave(const MHD_Connection* connection) noexcept;
  /// Takes out the oldest of the address that has most of them: a flood from one host keeps no other host out, and who
  /// sends a byte now and then keeps his place until somebody needs it. Null without any.
  [[nodiscard]] MHD_Connection* take_one() noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return peers_.size(); }

 private:
  using Address = std::array<std::uint8_t, 16>;
  struct Peer {
    MHD_Connection* connection;
    Address address;
  };
  std::vector<Peer> peers_;
  std::map<Address, std::size_t> counts_;
};

/// GET /metrics, answered by one thread of its own, which nothing of the server waits for. It keeps the connection of a
/// peer that stalls for kIdleSeconds, and kMostConnections at a time: with 1,200 new ones a second each has 0.2 s for
/// its request. Immovable.
class MetricsEndpoint {
 public:
  static constexpr unsigned kMostConnections = 256;
  static constexpr unsigned kIdleSeconds = 10;

  /// Takes the port; answers wait. Errors: kSystem and others of the address or port, by name; kUnsupported in a
  /// program that was built without libmicrohttpd.
  [[nodiscard]] static Result<std::unique_ptr<MetricsEndpoint>> listen(const MetricsArguments& arguments);
  /// Answers from now on. The server outlives this. Errors: kSystem.
  [[nodiscard]] Result<void> start(const kv::Server& server, unsigned workers);
  /// Ends its connections and its thread.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// "http://127.0.0.1:9470/metrics"
  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  /// What a GET is answered with.
  [[nodiscard]] std::string text() const { return metrics_text(*server_, workers_); }

 private:
  MetricsEndpoint(int socket, std::string url) : socket_(socket), url_(std::move(url)) {}

  [[maybe_unused]] int socket_;  ///< Of this until `start`, then of the daemon. Without libmicrohttpd: of nobody.
  const std::string url_;
  const kv::Server* server_ = nullptr;
  unsigned workers_ = 0;
  [[maybe_unused]] MHD_Daemon* daemon_ = nullptr;
  // At its own limit the daemon accepts nobody: there is room for those that are told to go and have not gone yet.
  static constexpr unsigned kMostAccepted = 2 * kMostConnections;
  MetricsPeers peers_{kMostAccepted};  ///< The daemon's thread alone uses it.
};

}  // namespace verbena::programs
