/* Clean-up in the order in which things were made. ibv_dealloc_pd and ibv_destroy_cq fail with EBUSY while something
 * uses them, and leak, for nobody looks; and the memory is deregistered while the queue pair can still write to it. */
#include <infiniband/verbs.h>

#include <stdlib.h>

void clean_up(struct ibv_pd* pd, struct ibv_cq* cq, struct ibv_mr* mr, struct ibv_qp* qp) {
  void* const memory = mr->addr;
  ibv_dealloc_pd(pd); /* BUG: EBUSY, the MR and the queue pair are in it. */
  ibv_destroy_cq(cq); /* BUG: EBUSY, the queue pair completes to it. */
  ibv_dereg_mr(mr);   /* BUG: what is under way fails; a peer that knows the key kills the connection. */
  free(memory);       /* BUG: see 01. */
  ibv_destroy_qp(qp); /* Only now nothing is under way any more. */
}
