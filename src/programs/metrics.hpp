// The HTTP port where Prometheus reads the store's statistics.
#pragma once

#include "programs/statistics.hpp"

#include <verbena/kv.hpp>

#include <cstdint>
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

/// GET /metrics, answered by one thread of its own, which nothing of the server waits for. Of a peer that stalls it
/// keeps the connection for some seconds; kMostConnections peers at a time. One more takes the place of the one that
/// has been there for longest: who sends a byte now and then would else keep his for ever, and the port from all
/// others. Immovable.
class MetricsEndpoint {
 public:
  static constexpr unsigned kMostConnections = 16;
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
  std::vector<MHD_Connection*> peers_;  ///< Oldest first. Of the daemon's thread.
};

}  // namespace verbena::programs
