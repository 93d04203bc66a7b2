// What a lane writes is nobody else's meanwhile.
// expect: cannot bind|no matching
#include <verbena/typed_mesh.hpp>

using namespace verbena;

void write(typed::MeshLane& lane, typed::Segment<int> own, const typed::PeerSegment<int>& there) {
#ifdef WRONG
  (void)lane.start_write(own, there);
#else
  (void)lane.start_write(std::move(own), there);
#endif
}
