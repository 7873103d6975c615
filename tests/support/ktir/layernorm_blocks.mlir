// SPDX-License-Identifier: Apache-2.0
// Layer norm of 50 rows of 512 elements, in blocks of 128 and three passes over each row, as a Triton kernel does it. A
// compute tile takes rows id, id + 8, id + 16, ...

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 49 >= 0, d1 >= 0, -d1 + 511 >= 0)>
#columns = affine_set<(d0) : (d0 >= 0, -d0 + 511 >= 0)>
#row = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 127 >= 0)>
#block = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>
#order1 = affine_map<(d0) -> (d0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>

func.func @layernorm_blocks(%x: index, %weight: index, %bias: index, %y: index, %eps: f32) attributes {grid = [8]} {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c50 = arith.constant 50 : index
  %c128 = arith.constant 128 : index
  %c512 = arith.constant 512 : index
  %zero = arith.constant 0.0 : f32
  %width = arith.constant 512.0 : f32
  %id = ktdp.get_compute_tile_id : index
  %X = ktdp.construct_memory_view %x, sizes: [50, 512], strides: [512, 1] {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<50x512xf16>
  %W = ktdp.construct_memory_view %weight, sizes: [512], strides: [1] {coordinate_set = #columns, memory_space = #ktdp.memory_space<global>} : memref<512xf16>
  %B = ktdp.construct_memory_view %bias, sizes: [512], strides: [1] {coordinate_set = #columns, memory_space = #ktdp.memory_space<global>} : memref<512xf16>
  %Y = ktdp.construct_memory_view %y, sizes: [50, 512], strides: [512, 1] {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<50x512xf16>
  %nothing = tensor.splat %zero : tensor<128xf32>
  scf.for %row = %id to %c50 step %c8 {
    %sums = scf.for %off = %c0 to %c512 step %c128 iter_args(%acc = %nothing) -> (tensor<128xf32>) {
      %t = ktdp.construct_access_tile %X[%row, %off] {access_tile_set = #row, access_tile_order = #order2} : memref<50x512xf16> -> <1x128xindex>
      %v2 = ktdp.load %t : <1x128xindex> -> tensor<1x128xf16>
      %v1 = tensor.collapse_shape %v2 [[0, 1]] : tensor<1x128xf16> into tensor<128xf16>
      %v = arith.extf %v1 : tensor<128xf16> to tensor<128xf32>
      %next = arith.addf %acc, %v : tensor<128xf32>
      scf.yield %next : tensor<128xf32>
    }
    %scalar = tensor.empty() : tensor<f32>
    %none = linalg.fill ins(%zero : f32) outs(%scalar : tensor<f32>) -> tensor<f32>
    %total = linalg.reduce { arith.addf } ins(%sums : tensor<128xf32>) outs(%none : tensor<f32>) dimensions = [0]
    %total0 = tensor.extract %total[] : tensor<f32>
    %mean = arith.divf %total0, %width : f32
    %means = tensor.splat %mean : tensor<128xf32>
    %squares = scf.for %off = %c0 to %c512 step %c128 iter_args(%acc = %nothing) -> (tensor<128xf32>) {
      %t = ktdp.construct_access_tile %X[%row, %off] {access_tile_set = #row, access_tile_order = #order2} : memref<50x512xf16> -> <1x128xindex>
      %v2 = ktdp.load %t : <1x128xindex> -> tensor<1x128xf16>
      %v1 = tensor.collapse_shape %v2 [[0, 1]] : tensor<1x128xf16> into tensor<128xf16>
      %v = arith.extf %v1 : tensor<128xf16> to tensor<128xf32>
      %d = arith.subf %v, %means : tensor<128xf32>
      %dd = arith.mulf %d, %d : tensor<128xf32>
      %next = arith.addf %acc, %dd : tensor<128xf32>
      scf.yield %next : tensor<128xf32>
    }
    %power = linalg.reduce { arith.addf } ins(%squares : tensor<128xf32>) outs(%none : tensor<f32>) dimensions = [0]
    %power0 = tensor.extract %power[] : tensor<f32>
    %variance = arith.divf %power0, %width : f32
    %shifted = arith.addf %variance, %eps : f32
    %rstd = math.rsqrt %shifted : f32
    %rstds = tensor.splat %rstd : tensor<128xf32>
    scf.for %off = %c0 to %c512 step %c128 {
      %t = ktdp.construct_access_tile %X[%row, %off] {access_tile_set = #row, access_tile_order = #order2} : memref<50x512xf16> -> <1x128xindex>
      %v2 = ktdp.load %t : <1x128xindex> -> tensor<1x128xf16>
      %v1 = tensor.collapse_shape %v2 [[0, 1]] : tensor<1x128xf16> into tensor<128xf16>
      %v = arith.extf %v1 : tensor<128xf16> to tensor<128xf32>
      %wt = ktdp.construct_access_tile %W[%off] {access_tile_set = #block, access_tile_order = #order1} : memref<512xf16> -> <128xindex>
      %bt = ktdp.construct_access_tile %B[%off] {access_tile_set = #block, access_tile_order = #order1} : memref<512xf16> -> <128xindex>
      %w1 = ktdp.load %wt : <128xindex> -> tensor<128xf16>
      %b1 = ktdp.load %bt : <128xindex> -> tensor<128xf16>
      %w = arith.extf %w1 : tensor<128xf16> to tensor<128xf32>
      %b = arith.extf %b1 : tensor<128xf16> to tensor<128xf32>
      %d = arith.subf %v, %means : tensor<128xf32>
      %n = arith.mulf %d, %rstds : tensor<128xf32>
      %s = arith.mulf %n, %w : tensor<128xf32>
      %r = arith.addf %s, %b : tensor<128xf32>
      %r16 = arith.truncf %r : tensor<128xf32> to tensor<128xf16>
      %r2 = tensor.expand_shape %r16 [[0, 1]] output_shape [1, 128] : tensor<128xf16> into tensor<1x128xf16>
      %yt = ktdp.construct_access_tile %Y[%row, %off] {access_tile_set = #row, access_tile_order = #order2} : memref<50x512xf16> -> <1x128xindex>
      ktdp.store %r2, %yt : tensor<1x128xf16>, <1x128xindex>
    }
  }
  return
}
