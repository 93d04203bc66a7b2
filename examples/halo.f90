! Heat on a grid whose columns are spread over the processes of a mesh, in a ring: each step writes the outer columns
! into the neighbours' memory, and the immediate beside a write says that it is there. Each process compares its part
! with what one process alone gets.
! usage: halo DIRECTORY ID PROCESSES      the directory is one that all of them see; at least 2 processes
module heat
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  integer, parameter :: ROWS = 64, COLUMNS = 16, STEPS = 200
  integer, parameter :: LEFT = 1, RIGHT = 2, SIDES = 2
  integer(c_int), parameter :: PATIENCE_MS = 20000

  ! Memory of the mesh. A neighbour may be a step ahead, so there is one of each for even steps and one for odd.
  type :: columns_t
    real(c_double) :: column(ROWS, SIDES, 0:1)
  end type

  type(mesh_lane_t) :: lane
  type(columns_t), pointer :: halo, outer       ! What neighbours write, and what this process writes to them.
  type(mesh_window_t) :: window(SIDES)          ! The neighbours' halos.
  integer :: arrived(0:1) = 0, under_way = 0    ! Columns that have come for even and odd steps; own writes.
contains
  subroutine check(what, code)
    character(len=*), intent(in) :: what
    integer(c_int), intent(in) :: code
    if (code == MESH_OK) return
    print *, what, ': ', mesh_error_text(code)
    print *, mesh_error_detail()
    stop 1, quiet=.true.
  end subroutine

  function memory_of(mesh) result(columns)
    type(mesh_t), intent(in) :: mesh
    type(columns_t), pointer :: columns
    type(c_ptr) :: memory
    call check('mesh_allocate', mesh_allocate(mesh, int(ROWS * SIDES * 2 * 8, c_size_t), memory))
    call c_f_pointer(memory, columns)
  end function

  ! One completion, or one event of a peer.
  subroutine progress()
    type(mesh_completion_t) :: one(1)
    if (mesh_wait(lane, one, MESH_ALL, PATIENCE_MS) /= 1) error stop 'nothing came in 20 s'
    call check('a neighbour', one(1)%code)
    if (one(1)%kind == MESH_KIND_WRITTEN) arrived(one(1)%immediate) = arrived(one(1)%immediate) + 1
    if (one(1)%kind == MESH_KIND_WRITE) under_way = under_way - 1
  end subroutine

  ! Columns 0 and COLUMNS+1 of the grid become the neighbours'.
  subroutine exchange(grid, step)
    real(c_double), intent(inout) :: grid(ROWS, 0:COLUMNS + 1)
    integer, intent(in) :: step
    integer :: side, parity
    parity = modulo(step, 2)
    outer%column(:, LEFT, parity) = grid(:, 1)
    outer%column(:, RIGHT, parity) = grid(:, COLUMNS)
    do side = LEFT, RIGHT
      ! This process is on the other side of its neighbour.
      call check('mesh_write_imm', mesh_write_imm(lane, window(side), offset_of(SIDES + 1 - side, parity), &
        c_loc(outer%column(1, side, parity)), int(ROWS * 8, c_size_t), 0_c_int64_t, int(parity, c_int32_t)))
      under_way = under_way + 1
    end do
    do while (arrived(parity) < SIDES .or. under_way > 0)
      call progress()
    end do
    arrived(parity) = 0
    grid(:, 0) = halo%column(:, LEFT, parity)
    grid(:, COLUMNS + 1) = halo%column(:, RIGHT, parity)
  end subroutine

  function offset_of(side, parity) result(bytes)
    integer, intent(in) :: side, parity
    integer(c_int64_t) :: bytes
    bytes = int(ROWS * 8 * (side - 1 + SIDES * parity), c_int64_t)
  end function

  ! Each inner point becomes the mean of itself and its four neighbours. The first and the last row stay.
  subroutine relax(grid)
    real(c_double), intent(inout) :: grid(:, 0:)
    real(c_double) :: new(size(grid, 1), ubound(grid, 2) - 1)
    integer :: row, column
    new = grid(:, 1:ubound(grid, 2) - 1)
    do column = 1, size(new, 2)
      do row = 2, ROWS - 1
        new(row, column) = (grid(row, column) + grid(row - 1, column) + grid(row + 1, column) &
          + grid(row, column - 1) + grid(row, column + 1)) / 5
      end do
    end do
    grid(:, 1:ubound(grid, 2) - 1) = new
  end subroutine

  function start(row, column) result(value)
    integer, intent(in) :: row, column
    real(c_double) :: value
    value = real(modulo(row * 7919 + column * 104729, 1000), c_double)
  end function

  function number(position)
    integer, intent(in) :: position
    integer(c_int) :: number
    character(len=16) :: argument
    call get_command_argument(position, argument)
    read (argument, *) number
  end function
end module heat

program halo_in_fortran
  use heat
  implicit none
  type(mesh_options_t) :: options
  type(mesh_carrier_t) :: carrier
  type(mesh_t) :: mesh
  character(len=1024) :: directory
  real(c_double) :: grid(ROWS, 0:COLUMNS + 1)
  real(c_double), allocatable :: whole(:, :)
  integer :: side, row, column, step, all_columns, first
  integer(c_int) :: neighbour

  if (command_argument_count() /= 3) error stop 'usage: halo DIRECTORY ID PROCESSES'
  call get_command_argument(1, directory)
  call mesh_options_init(options)
  call get_environment_variable('VERBENA_NIC', options%device) ! 'soft', 'mlx5_0'; else what there is.
  options%id = number(2)
  options%processes = number(3)
  if (options%processes < 2) error stop 'halo takes at least 2 processes'
  call check('mesh_carrier_directory', mesh_carrier_directory(directory, 'halo', carrier))
  call check('mesh_join', mesh_join(options, carrier, mesh))
  lane = mesh_lane(mesh, 0)

  halo => memory_of(mesh)
  outer => memory_of(mesh)
  call check('mesh_publish', mesh_publish(mesh, 'halo', c_loc(halo), int(ROWS * SIDES * 2 * 8, c_size_t)))
  do side = LEFT, RIGHT
    neighbour = modulo(options%id + merge(-1, 1, side == LEFT), options%processes)
    call check('mesh_find', mesh_find(lane, neighbour, 'halo', PATIENCE_MS, window(side)))
  end do

  all_columns = COLUMNS * options%processes
  first = COLUMNS * options%id
  allocate (whole(ROWS, 0:all_columns + 1))
  do column = 1, all_columns
    do row = 1, ROWS
      whole(row, column) = start(row, column)
    end do
  end do
  grid(:, 1:COLUMNS) = whole(:, first + 1:first + COLUMNS)
  do step = 1, STEPS
    call exchange(grid, step)
    call relax(grid)
    whole(:, 0) = whole(:, all_columns)
    whole(:, all_columns + 1) = whole(:, 1)
    call relax(whole)
  end do
  if (any(abs(grid(:, 1:COLUMNS) - whole(:, first + 1:first + COLUMNS)) > 1e-9_c_double)) &
    error stop 'the parts do not make the whole'
  if (options%id == 0) &
    print '(i0, a, i0, a)', options%processes, ' processes have the heat of one after ', STEPS, ' steps'

  ! Nobody leaves while others still write to it.
  call check('mesh_barrier', mesh_barrier(lane, PATIENCE_MS))
  call check('mesh_leave', mesh_leave(mesh))
end program halo_in_fortran
