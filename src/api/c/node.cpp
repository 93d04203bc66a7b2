// Nodes of verbena/rdma.h.
#include "api/c/handles.hpp"
#include "api/c/transport.hpp"
#include "base/limit.hpp"

#include <utility>

namespace verbena::api::c {
namespace {

[[nodiscard]] Result<node::NodeOptions> checked(const RdmaNodeOptions& options) {
  VERBENA_TRY(check_limit("options", "shards", options.shards, 1, 256));  // Before `cpus` is read.
  node::NodeOptions made;
  VERBENA_ASSIGN(made.transport, transport_of(kBootstraps, options.bootstrap, options.device, options.gid_index));
  if (options.address != nullptr) made.address = options.address;
  made.shards = options.shards;
  made.connections = options.connections;
  if (options.cpus != nullptr) made.cpus.assign(options.cpus, options.cpus + options.shards);
  VERBENA_ASSIGN(made.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  return made;
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
  return memory_of(node->memories, call, [&] { return node->node->allocate(size); });
}

const RdmaMemory* rdmaNodeRegister(RdmaNode* node, void* addr, size_t length, unsigned access) {
  const char* const call = as_written(__func__);
  if (!is_given(call, "node", node) || !is_region(call, addr, length, access)) return nullptr;
  return memory_of(node->memories, call, [&] {
    return node->node->add({static_cast<std::byte*>(addr), length}, static_cast<verbena::rdma::Access>(access));
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
