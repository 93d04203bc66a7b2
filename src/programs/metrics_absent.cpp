// The endpoint of a program built without libmicrohttpd: an error that says so.
#include "base/error.hpp"
#include "programs/metrics.hpp"

namespace verbena::programs {

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::listen(const MetricsArguments&) {
  return fail(Status::kUnsupported, "listen", 0,
              "this verbena-kv was built without libmicrohttpd: install libmicrohttpd-dev and build it with "
              "-Dmetrics=enabled");
}

Result<void> MetricsEndpoint::start(const kv::Server&, unsigned) { return {}; }

MetricsEndpoint::~MetricsEndpoint() = default;

}  // namespace verbena::programs
