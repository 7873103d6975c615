// SPDX-License-Identifier: Apache-2.0
// Layer norm of 1151 rows of 8192 elements, with scale and shift. A compute tile owns up to 36 consecutive rows and
// takes one at a time; mean and reciprocal deviation of every row are stored too.

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1150 >= 0, d1 >= 0, -d1 + 8191 >= 0)>
#columns = affine_set<(d0) : (d0 >= 0, -d0 + 8191 >= 0)>
#rows = affine_set<(d0) : (d0 >= 0, -d0 + 1150 >= 0)>
#row = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0, d1 >= 0, -d1 + 8191 >= 0)>
#one = affine_set<(d0) : (d0 >= 0, -d0 >= 0)>
#order1 = affine_map<(d0) -> (d0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>

module {
  func.func @layernorm(%x: index, %weight: index, %bias: index, %y: index, %mean: index, %rstd: index, %eps: f32)
      attributes {grid = [32]} {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %per_tile = arith.constant 36 : index
    %count = arith.constant 1151 : index
    %zero = arith.constant 0.0 : f32
    %inverse = arith.constant 1.220703125e-04 : f32
    %id = ktdp.get_compute_tile_id : index
    %first = arith.muli %id, %per_tile : index
    %end = arith.addi %first, %per_tile : index
    %last = arith.minsi %end, %count : index
    %X = ktdp.construct_memory_view %x, sizes: [1151, 8192], strides: [8192, 1]
      {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<1151x8192xf16>
    %W = ktdp.construct_memory_view %weight, sizes: [8192], strides: [1]
      {coordinate_set = #columns, memory_space = #ktdp.memory_space<global>} : memref<8192xf16>
    %B = ktdp.construct_memory_view %bias, sizes: [8192], strides: [1]
      {coordinate_set = #columns, memory_space = #ktdp.memory_space<global>} : memref<8192xf16>
    %Y = ktdp.construct_memory_view %y, sizes: [1151, 8192], strides: [8192, 1]
      {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<1151x8192xf16>
    %M = ktdp.construct_memory_view %mean, sizes: [1151], strides: [1]
      {coordinate_set = #rows, memory_space = #ktdp.memory_space<global>} : memref<1151xf32>
    %R = ktdp.construct_memory_view %rstd, sizes: [1151], strides: [1]
      {coordinate_set = #rows, memory_space = #ktdp.memory_space<global>} : memref<1151xf32>
    %wt = ktdp.construct_access_tile %W[%c0] {access_tile_set = #columns, access_tile_order = #order1}
      : memref<8192xf16> -> !ktdp.access_tile<8192xindex>
    %bt = ktdp.construct_access_tile %B[%c0] {access_tile_set = #columns, access_tile_order = #order1}
      : memref<8192xf16> -> !ktdp.access_tile<8192xindex>
    %w16 = ktdp.load %wt : !ktdp.access_tile<8192xindex> -> tensor<8192xf16>
    %b16 = ktdp.load %bt : !ktdp.access_tile<8192xindex> -> tensor<8192xf16>
    %w32 = arith.extf %w16 : tensor<8192xf16> to tensor<8192xf32>
    %b32 = arith.extf %b16 : tensor<8192xf16> to tensor<8192xf32>
    %w = tensor.expand_shape %w32 [[0, 1]] output_shape [1, 8192] : tensor<8192xf32> into tensor<1x8192xf32>
    %b = tensor.expand_shape %b32 [[0, 1]] output_shape [1, 8192] : tensor<8192xf32> into tensor<1x8192xf32>
    %scale = tensor.splat %inverse : tensor<1xf32>
    %epsilon = tensor.splat %eps : tensor<1xf32>
    scf.for %row = %first to %last step %c1 {
      %source = ktdp.construct_access_tile %X[%row, %c0] {access_tile_set = #row, access_tile_order = #order2}
        : memref<1151x8192xf16> -> !ktdp.access_tile<1x8192xindex>
      %x16 = ktdp.load %source : !ktdp.access_tile<1x8192xindex> -> tensor<1x8192xf16>
      %x32 = arith.extf %x16 : tensor<1x8192xf16> to tensor<1x8192xf32>
      %one = tensor.empty() : tensor<1xf32>
      %wide = tensor.empty() : tensor<1x8192xf32>
      %none = linalg.fill ins(%zero : f32) outs(%one : tensor<1xf32>) -> tensor<1xf32>
      %sum = linalg.reduce { arith.addf } ins(%x32 : tensor<1x8192xf32>) outs(%none : tensor<1xf32>) dimensions = [1]
      %average = arith.mulf %sum, %scale : tensor<1xf32>
      %averages = linalg.broadcast ins(%average : tensor<1xf32>) outs(%wide : tensor<1x8192xf32>) dimensions = [1]
      %centred = arith.subf %x32, %averages : tensor<1x8192xf32>
      %squares = arith.mulf %centred, %centred : tensor<1x8192xf32>
      %power = linalg.reduce { arith.addf } ins(%squares : tensor<1x8192xf32>) outs(%none : tensor<1xf32>) dimensions = [1]
      %variance = arith.mulf %power, %scale : tensor<1xf32>
      %shifted = arith.addf %variance, %epsilon : tensor<1xf32>
      %deviation = math.rsqrt %shifted : tensor<1xf32>
      %deviations = linalg.broadcast ins(%deviation : tensor<1xf32>) outs(%wide : tensor<1x8192xf32>) dimensions = [1]
      %normal = arith.mulf %centred, %deviations : tensor<1x8192xf32>
      %scaled = arith.mulf %normal, %w : tensor<1x8192xf32>
      %moved = arith.addf %scaled, %b : tensor<1x8192xf32>
      %y16 = arith.truncf %moved : tensor<1x8192xf32> to tensor<1x8192xf16>
      %target = ktdp.construct_access_tile %Y[%row, %c0] {access_tile_set = #row, access_tile_order = #order2}
        : memref<1151x8192xf16> -> !ktdp.access_tile<1x8192xindex>
      ktdp.store %y16, %target : tensor<1x8192xf16>, !ktdp.access_tile<1x8192xindex>
      %mt = ktdp.construct_access_tile %M[%row] {access_tile_set = #one, access_tile_order = #order1}
        : memref<1151xf32> -> !ktdp.access_tile<1xindex>
      ktdp.store %average, %mt : tensor<1xf32>, !ktdp.access_tile<1xindex>
      %rt = ktdp.construct_access_tile %R[%row] {access_tile_set = #one, access_tile_order = #order1}
        : memref<1151xf32> -> !ktdp.access_tile<1xindex>
      ktdp.store %deviation, %rt : tensor<1xf32>, !ktdp.access_tile<1xindex>
    }
    return
  }
}
