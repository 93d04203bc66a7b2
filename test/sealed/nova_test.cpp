// Calls of the RDMALib interface, and of the slab manager, allocate nothing once they are set up.
#include "../compat/servers.hpp"
#include "allocations.hpp"

#include <thread>

namespace verbena::test {
namespace {

/// Counts, and sends each message on in another one.
struct Counter final : nova::NovaMsgCallback {
  bool ProcessRDMAWC(ibv_wc_opcode type, std::uint64_t /*wr_id*/, int server, char* /*buf*/,
                     std::uint32_t imm) override {
    ++counts[type == IBV_WC_RECV ? 0 : 1];
    if (type != IBV_WC_RECV || imm == 0) return true;
    (void)store->PostSend(store->GetSendBuf(server), 8, server, 0);
    return true;
  }
  NovaRDMARCStore* store = nullptr;
  std::array<std::uint64_t, 2> counts{};  ///< Messages, and all else.
};

TEST(SealedNova, OperationsAllocateNothing) {
  VERBENA_SKIP_WITHOUT_ALLOCATION_COUNTS();
  const std::string address = own_address();
  std::array<Counter, 2> callbacks;
  std::vector<std::vector<char>> memories(2, std::vector<char>(4096));
  std::vector<std::unique_ptr<RdmaCtrl>> ctrls;
  std::vector<std::unique_ptr<NovaRDMARCStore>> stores;
  for (const std::uint32_t id : {0U, 1U}) {
    ctrls.push_back(std::make_unique<RdmaCtrl>(static_cast<int>(id), kPort, options_at(address)));
    stores.push_back(std::make_unique<NovaRDMARCStore>(nullptr, 0, endpoints_at(address, {0, 1}, id), 8, 64, 4, id,
                                                       memories[id].data(), 4096, kPort, &callbacks.at(id)));
    callbacks.at(id).store = stores.back().get();
  }
  {
    const std::jthread other([&] { stores[1]->Init(ctrls[1].get()); });
    stores[0]->Init(ctrls[0].get());
  }
  NovaMemManager items({reinterpret_cast<std::byte*>(memories[0].data()), 4096}, 1, 64);

  const Allocations before = thread_allocations();
  const auto deadline = Deadline::after(kNovaPatience);
  std::uint64_t rounds = 0;
  bool has_items = true;
  for (; rounds < 1000 && !deadline.passed(); ++rounds) {
    char* const item = items.ItemAlloc(rounds, 0);
    has_items &= item != nullptr;
    (void)stores[0]->PostSend(stores[0]->GetSendBuf(1), 8, 1, 1);
    (void)stores[0]->PostSend(item, 8, 1, 0);
    (void)stores[0]->PostWrite(item, 8, 1, 0, true, 1);
    (void)stores[0]->PostRead(item, 8, 1, 0, 64, true);
    stores[0]->FlushPendingSends();
    const std::uint64_t due = 5 * (rounds + 1);  // Four ends here, and an answer.
    while (callbacks[0].counts[0] + callbacks[0].counts[1] < due && !deadline.passed())
      for (const auto& store : stores) {
        (void)store->PollSQ();
        (void)store->PollRQ();
      }
    items.FreeItem(rounds, item, 0);
  }
  const Allocations made = thread_allocations() - before;
  EXPECT_EQ(rounds, 1000U);
  EXPECT_TRUE(has_items);
  EXPECT_EQ(callbacks[0].counts[0], 1000U);
  EXPECT_EQ(callbacks[0].counts[1], 4000U);
  EXPECT_EQ(callbacks[1].counts[0], 2000U);
  EXPECT_EQ(made.total(), 0U) << made;
}

}  // namespace
}  // namespace verbena::test
