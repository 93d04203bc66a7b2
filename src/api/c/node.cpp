// Nodes of verbena/rdma.h.
#include "api/c/handles.hpp"
#include "api/c/users.hpp"
#include "base/limit.hpp"

#include <utility>

namespace verbena::api::c {
namespace {

[[nodiscard]] Result<node::NodeOptions> checked(const RdmaNodeOptions& options) {
  constexpr const char* kCall = "options";
  VERBENA_TRY(check_bootstrap(options.bootstrap));
  VERBENA_TRY(check_limit(kCall, "shards", options.shards, 1, 256));  // Before `cpus` is read.
  if (options.gid_index < -1 || options.gid_index > 255)
    return fail(Status::kBadArgument, kCall, 0, "gid_index must be 0 to 255, or -1 for the best; got {}",
                options.gid_index);
  node::NodeOptions made;
  made.transport.bootstrap = options.bootstrap == RDMA_BOOTSTRAP_SOCKET ? Bootstrap::kSocket : Bootstrap::kCm;
  if (options.device != nullptr) made.transport.device = options.device;
  if (options.gid_index >= 0) made.transport.gid_index = static_cast<std::uint32_t>(options.gid_index);
  if (options.address != nullptr) made.address = options.address;
  made.shards = options.shards;
  made.connections = options.connections;
  if (options.cpus != nullptr) made.cpus.assign(options.cpus, options.cpus + options.shards);
  VERBENA_ASSIGN(made.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  return made;
}

template <class Get>
const RdmaMemory* memory_of(RdmaNode* node, const char* call, Get&& get) noexcept {
  if (!is_given(as_written(call), "node", node)) return nullptr;
  const RdmaMemory* told = nullptr;
  (void)coded(call, [&]() -> Result<void> {
    VERBENA_ASSIGN(const session::RegisteredMemory* const memory, get(*node->node));
    told = node->memories.keep(*memory);
    return {};
  });
  return told;
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena;
using namespace verbena::api;
using namespace verbena::api::c;
using verbena::Status;

void rdmaNodeOptionsInit(RdmaNodeOptions* options) {
  if (options == nullptr) return;
  const verbena::node::NodeOptions defaults;
  *options = {.device = nullptr,
              .bootstrap = RDMA_BOOTSTRAP_CM,
              .gid_index = -1,
              .address = nullptr,
              .shards = defaults.shards,
              .connections = defaults.connections,
              .cpus = nullptr,
              .allowed_uids = nullptr,
              .allowed_uid_count = 0};
}

int rdmaNode(RdmaNode** node, const RdmaNodeOptions* options) {
  if (!is_given(as_written(__func__), "node", node)) return code_of(Status::kBadArgument);
  RdmaNodeOptions wanted;
  rdmaNodeOptionsInit(&wanted);
  if (options != nullptr) wanted = *options;
  return coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_ASSIGN(const verbena::node::NodeOptions made, checked(wanted));
    auto handle = std::make_unique<RdmaNode>();
    VERBENA_ASSIGN(handle->node, verbena::node::Node::open(made));
    *node = handle.release();
    return {};
  });
}

void rdmaNodeRelease(RdmaNode* node) { delete node; }

const RdmaMemory* rdmaNodeRegMem(RdmaNode* node, size_t size) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "node", node) || !is_memory(call, "size", size)) return nullptr;
  return memory_of(node, call, [&](verbena::node::Node& of) { return of.allocate(size); });
}

const RdmaMemory* rdmaNodeRegister(RdmaNode* node, void* addr, size_t length, unsigned access) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "node", node) || !is_region(call, addr, length, access)) return nullptr;
  return memory_of(node, call, [&](verbena::node::Node& of) {
    return of.add({static_cast<std::byte*>(addr), length}, static_cast<verbena::rdma::Access>(access));
  });
}

int rdmaNodeDeregMem(RdmaNode* node, const RdmaMemory* memory) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "node", node) || !is_given(call, "memory", memory)) return code_of(Status::kBadArgument);
  return coded(call, [&]() -> verbena::Result<void> {
    constexpr std::chrono::seconds kTimeout{5};
    const auto removed = node->node->remove(node->memories.find(memory), verbena::Deadline::after(kTimeout));
    node->memories.forget(memory);
    return removed;
  });
}

int rdmaNodePublish(RdmaNode* node, const char* name, const RdmaMemory* memory) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "node", node) || !is_name(call, name)) return code_of(Status::kBadArgument);
  return coded(call, [&] { return publish_by(*node->node, node->memories, name, memory); });
}

int rdmaNodePublishPart(RdmaNode* node, const char* name, const RdmaMemory* memory, size_t offset, size_t length) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "node", node) || !is_name(call, name) || !is_given(call, "memory", memory) ||
      !is_in_range(call, "length", length))
    return code_of(Status::kBadArgument);
  return coded(call, [&] { return publish_by(*node->node, node->memories, name, memory, offset, length); });
}
