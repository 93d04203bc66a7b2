! A counter goes once around all processes of a mesh; each adds one.
! usage: mesh_ring DIRECTORY ID PROCESSES      the directory is one that all of them see
module ring
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int), parameter :: PATIENCE_MS = 20000
contains
  subroutine check(what, code)
    character(len=*), intent(in) :: what
    integer(c_int), intent(in) :: code
    if (code == MESH_OK) return
    print *, what, ': ', mesh_error_text(code)
    print *, mesh_error_detail()
    stop 1, quiet=.true.
  end subroutine

  subroutine pass_on(lane, peer, count)
    type(mesh_lane_t), intent(in) :: lane
    integer(c_int), intent(in) :: peer, count
    call check('mesh_send', mesh_send(lane, peer, count, c_sizeof(count), 0_c_int64_t))
  end subroutine

  function receive(lane) result(count)
    type(mesh_lane_t), intent(in) :: lane
    integer(c_int) :: count
    type(mesh_completion_t) :: one(1)
    integer(c_int), pointer :: arrived
    do
      if (mesh_wait(lane, one, MESH_ALL, PATIENCE_MS) /= 1) error stop 'nothing came in 20 s'
      call check('a peer', one(1)%code)
      if (one(1)%kind == MESH_KIND_RECEIVE) exit
    end do
    call c_f_pointer(one(1)%bytes, arrived) ! Where it arrived, until it is released.
    count = arrived
    call check('mesh_release', mesh_release(lane, one(1)))
  end function

  function number(position)
    integer, intent(in) :: position
    integer(c_int) :: number
    character(len=16) :: argument
    call get_command_argument(position, argument)
    read (argument, *) number
  end function
end module ring

program mesh_ring
  use ring
  implicit none
  type(mesh_options_t) :: options
  type(mesh_carrier_t) :: carrier
  type(mesh_t) :: mesh
  type(mesh_lane_t) :: lane
  character(len=1024) :: directory
  integer(c_int) :: next

  if (command_argument_count() /= 3) error stop 'usage: mesh_ring DIRECTORY ID PROCESSES'
  call get_command_argument(1, directory)
  call mesh_options_init(options)
  call get_environment_variable('VERBENA_NIC', options%device) ! 'soft', 'mlx5_0'; else what there is.
  options%id = number(2)
  options%processes = number(3)
  call check('mesh_carrier_directory', mesh_carrier_directory(directory, 'ring', carrier))
  call check('mesh_join', mesh_join(options, carrier, mesh))
  lane = mesh_lane(mesh, 0)

  next = modulo(options%id + 1, options%processes)
  if (options%id == 0) then
    if (next /= 0) call pass_on(lane, next, 1)
    if (next /= 0) print '(i0, a)', receive(lane), ' processes were visited'
  else
    call pass_on(lane, next, receive(lane) + 1)
  end if
  ! Nobody leaves while others still wait for it.
  call check('mesh_barrier', mesh_barrier(lane, PATIENCE_MS))
  call check('mesh_leave', mesh_leave(mesh))
end program mesh_ring
