/* A receive is posted, and the program goes on to use its buffer for something else: here as scratch memory for a name.
 * The message that comes is written over it at any moment; or the name over the message, when that came first. */
#include <infiniband/verbs.h>

#include <stdint.h>
#include <stdio.h>

int post_and_format(struct ibv_qp* qp, struct ibv_mr* mr, int rank) {
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = (uint32_t)mr->length, .lkey = mr->lkey};
  struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
  struct ibv_recv_wr* bad;
  if (ibv_post_recv(qp, &wr, &bad)) return -1;
  return snprintf(mr->addr, mr->length, "rank %d", rank); /* BUG: the buffer belongs to the NIC until the completion. */
}
