/* Two tasks share one registered buffer, each a part of it. The border was off by some bytes in one of them: two READs
 * write the same memory, and which of them is last depends on the network. */
#include <infiniband/verbs.h>

#include <stdint.h>

int read_into(struct ibv_qp* qp, struct ibv_mr* mr, uint64_t offset, uint32_t length, uint64_t address, uint32_t rkey) {
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr + offset, .length = length, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  return ibv_post_send(qp, &wr, &bad);
}

int read_halves(struct ibv_qp* qp, struct ibv_mr* mr, uint64_t address, uint32_t rkey) {
  int failed = read_into(qp, mr, 0, 512, address, rkey);
  failed |= read_into(qp, mr, 500, 500, address + 512, rkey); /* BUG: bytes 500 to 511 are of both. */
  return failed;
}
