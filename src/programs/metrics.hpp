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

/// Where metrics are served.
struct MetricsArguments {
  std::string address = "127.0.0.1";  ///< A numeric address of this host, or 0.0.0.0 or :: for all of its addresses.
  std::optional<std::uint16_t> port;  ///< None: no metrics. 0 takes any free one.
};

/// Connections to the endpoint, in order of arrival. \thread one
class MetricsPeers {
 public:
  explicit MetricsPeers(std::size_t most) { peers_.reserve(most); }
  /// Adds a connection; at most `most` at a time.
  void enter(MHD_Connection* connection);
  void leave(const MHD_Connection* connection) noexcept;
  /// Takes out the oldest connection of the address that has the most: a flood from one host keeps no other host out,
  /// and a client that sends a byte now and then keeps its place until another needs it. Null: there is none.
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

/// Answers GET /metrics in a thread of its own; nothing in the server waits for it. Keeps the connection of a stalled
/// peer for kIdleSeconds, and kMostConnections at a time: with 1,200 new ones a second each has 0.2 s for its request.
/// Immovable.
class MetricsEndpoint {
 public:
  static constexpr unsigned kMostConnections = 256;
  static constexpr unsigned kIdleSeconds = 10;

  /// Takes the port; answers start later. Errors: kSystem and others, naming the address or port; kUnsupported in a
  /// program built without libmicrohttpd.
  [[nodiscard]] static Result<std::unique_ptr<MetricsEndpoint>> listen(const MetricsArguments& arguments);
  /// Starts to answer. The server must outlive this object. Errors: kSystem.
  [[nodiscard]] Result<void> start(const kv::Server& server, unsigned workers);
  /// Ends its connections and its thread.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// "http://127.0.0.1:9470/metrics"
  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  /// The answer to a GET.
  [[nodiscard]] std::string text() const { return metrics_text(*server_, workers_); }

 private:
  MetricsEndpoint(int socket, std::string url) : socket_(socket), url_(std::move(url)) {}

  [[maybe_unused]] int socket_;  ///< Owned by this object until `start`, then by the daemon. Unused without
                                 ///< libmicrohttpd.
  const std::string url_;
  const kv::Server* server_ = nullptr;
  unsigned workers_ = 0;
  [[maybe_unused]] MHD_Daemon* daemon_ = nullptr;
  // At its own limit the daemon accepts nobody, so there must be room for connections that are told to go and still
  // exist.
  static constexpr unsigned kMostAccepted = 2 * kMostConnections;
  MetricsPeers peers_{kMostAccepted};  ///< Used by the daemon's thread only.
};

}  // namespace verbena::programs
