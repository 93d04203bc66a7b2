// What a process lets others only read is written by nobody.
// expect: no matching|could not convert|no viable conversion|cannot convert
#include <verbena/typed_mesh.hpp>

using namespace verbena;

#ifdef WRONG
using There = typed::PeerSegment<const int>;
#else
using There = typed::PeerSegment<int>;
#endif

void write(typed::MeshLane& lane, typed::Segment<int> own, const There& there) {
  (void)lane.start_write(std::move(own), there);
}
