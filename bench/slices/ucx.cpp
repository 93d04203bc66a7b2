// UCX as the driver bench/slices loads it: two workers of one process over shared memory, as its perftest uses them.
#include "variant.hpp"

#include <ucp/api/ucp.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr unsigned kEcho = 1;
constexpr std::size_t kBytes = 4096;

struct End {
  ucp_worker_h worker = nullptr;
  ucp_ep_h to = nullptr;  ///< The other end.
  ucp_mem_h memory = nullptr;
  std::uint64_t* words = nullptr;  ///< What the other end reads and writes.
  ucp_rkey_h key = nullptr;        ///< Of the other end's memory.
  std::uint64_t arrived = 0;       ///< Messages.
};
ucp_context_h context = nullptr;
std::array<End, 2> ends;
std::string why;

ucs_status_t on_message(void* end, const void*, std::size_t, void*, std::size_t, const ucp_am_recv_param_t*) {
  ++static_cast<End*>(end)->arrived;
  return UCS_OK;
}

/// Whether the request, which may be complete already, ended well.
bool complete(End& end, void* request) {
  if (request == nullptr) return true;
  if (UCS_PTR_IS_ERR(request)) return false;
  ucs_status_t status = UCS_INPROGRESS;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) ucp_worker_progress(end.worker);
  ucp_request_free(request);
  return status == UCS_OK;
}

bool make(End& end) {
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SINGLE;
  if (ucp_worker_create(context, &worker, &end.worker) != UCS_OK) return false;
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kEcho;
  handler.cb = on_message;
  handler.arg = &end;
  if (ucp_worker_set_am_recv_handler(end.worker, &handler) != UCS_OK) return false;
  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  map.length = kBytes;
  map.flags = UCP_MEM_MAP_ALLOCATE;
  if (ucp_mem_map(context, &map, &end.memory) != UCS_OK) return false;
  ucp_mem_attr_t place{};
  place.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  if (ucp_mem_query(end.memory, &place) != UCS_OK) return false;
  end.words = static_cast<std::uint64_t*>(place.address);
  std::memset(end.words, 0, kBytes);
  return true;
}

bool join(End& end, End& other) {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (ucp_worker_get_address(other.worker, &address, &bytes) != UCS_OK) return false;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = address;
  const bool is_made = ucp_ep_create(end.worker, &params, &end.to) == UCS_OK;
  ucp_worker_release_address(other.worker, address);
  void* packed = nullptr;
  if (!is_made || ucp_rkey_pack(context, other.memory, &packed, &bytes) != UCS_OK) return false;
  const bool is_unpacked = ucp_ep_rkey_unpack(end.to, packed, &end.key) == UCS_OK;
  ucp_rkey_buffer_release(packed);
  return is_unpacked;
}

const char* fail(const char* what) {
  why = std::string("UCX: ") + what + " failed";
  return why.c_str();
}

const char* open(unsigned /*server_cpu*/) {
  setenv("UCX_TLS", "posix", 0);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA;
  ucp_config_t* config = nullptr;
  if (ucp_config_read(nullptr, nullptr, &config) != UCS_OK) return fail("reading its configuration");
  const ucs_status_t made = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (made != UCS_OK || !make(ends[0]) || !make(ends[1])) return fail("making two workers");
  return join(ends[0], ends[1]) && join(ends[1], ends[0]) ? nullptr : fail("connecting them");
}

void close() {
  const ucp_request_param_t none{};
  for (End& end : ends) {
    ucp_rkey_destroy(end.key);
    (void)complete(end, ucp_ep_close_nbx(end.to, &none));
  }
  for (End& end : ends) {
    (void)ucp_mem_unmap(context, end.memory);
    ucp_worker_destroy(end.worker);
  }
  ucp_cleanup(context);
}

template <std::size_t kLength, bool kBegins>
bool message(std::uint64_t count) {
  End& end = ends[kBegins ? 0 : 1];
  const std::array<std::byte, kLength> body{};
  const ucp_request_param_t none{};
  const auto send = [&] { return complete(end, ucp_am_send_nbx(end.to, kEcho, nullptr, 0, &body, kLength, &none)); };
  const auto await = [&](std::uint64_t arrived) {
    while (end.arrived != arrived) ucp_worker_progress(end.worker);
  };
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t next = end.arrived + 1;
    if (!kBegins) await(next);
    if (!send()) return false;
    if (kBegins) await(next);
  }
  return true;
}

bool read(std::uint64_t count) {
  End& end = ends[0];
  const ucp_request_param_t none{};
  std::uint64_t into = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto from = reinterpret_cast<std::uint64_t>(ends[1].words + 8);
    if (!complete(end, ucp_get_nbx(end.to, &into, sizeof into, from, end.key, &none))) return false;
  }
  return true;
}

bool write(std::uint64_t count) {
  End& end = ends[0];
  const ucp_request_param_t none{};
  const std::uint64_t value = 7;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto into = reinterpret_cast<std::uint64_t>(ends[1].words + 16);
    if (!complete(end, ucp_put_nbx(end.to, &value, sizeof value, into, end.key, &none))) return false;
  }
  return true;
}

template <bool kBegins>
bool seen(std::uint64_t count) {
  End& end = ends[kBegins ? 0 : 1];
  End& other = ends[kBegins ? 1 : 0];
  static std::uint64_t last = 0;
  const ucp_request_param_t none{};
  const volatile std::uint64_t& arrived = end.words[0];
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t next = last + 1;
    if (!kBegins)
      while (arrived != next) {}
    last = next;
    if (!complete(
            end, ucp_put_nbx(end.to, &next, sizeof next, reinterpret_cast<std::uint64_t>(other.words), end.key, &none)))
      return false;
    if (kBegins)
      while (arrived != next) {}
  }
  return true;
}

constexpr verbena::slices::Operation kOperations[] = {
    {.name = "message 8 B", .client = message<8, true>, .server = message<8, false>},
    {.name = "message 64 B", .client = message<64, true>, .server = message<64, false>},
    {.name = "read 8 B", .client = read},
    {.name = "write 8 B", .client = write},
    {.name = "write 8 B seen", .client = seen<true>, .server = seen<false>},
};
constexpr verbena::slices::Variant kVariant{
    .open = open, .close = close, .operations = kOperations, .count = std::size(kOperations)};

}  // namespace

const verbena::slices::Variant* slices_variant() { return &kVariant; }
